"""Dense: what followed where the target thought alike, found by the hidden state that produced the root.

    last pass     ... x ── root       the hidden state after x produced the root
    store         hidden states of texts, each with the tokens that followed: those that begin with the root are kept

No model runs. A search is a walk through a memory-mapped graph. On an accelerator the hidden states are read by the host:
one more read in a round.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Integer

from draftwood.core.forward import FINAL, ForwardOutput, Needs
from draftwood.core.host import host_array
from draftwood.core.last_rounds import LastRounds, forget, just_ran, note
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Runner, TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.drafters.retrieval.retrieved import NOTHING, Retrieved, as_given, columns
from draftwood.drafters.retrieval.stores.container import DENSE
from draftwood.drafters.retrieval.stores.dense.store import DenseStore
from draftwood.drafters.retrieval.trie import trie_of
from draftwood.drafters.stateless import Stateless
from draftwood.errors import OptionError, need_at_least

NARROW = 0.1  # difference of cosines by which a neighbour weighs e times less
DOUBT = 0.3  # weight of a continuation that no neighbour has


def open_dense(path: Path | None, target: Runner) -> DenseStore:
    """The store at `path`, if it holds this target's hidden states. OptionError or StoreError says what is wrong."""
    if path is None:
        raise OptionError(
            f"a dense datastore is needed, and none is given\nhint: `{DENSE.make}`, then --option store=STORE"
        )
    if not target.info.fingerprint:
        raise OptionError(f"{path} cannot be used: this target has no fingerprint to compare\nhint: load it by name")
    store = DenseStore.open(path)
    store.need_target(target.info)
    return store


@dataclass(frozen=True, slots=True)
class Dense(Stateless):
    """Of the `neighbours` nearest keys those that produced the root are kept, and the first `drafts` of them are merged.

    A neighbour of cosine c weighs exp((c - 1) / NARROW). A node's chance, given that its parent is accepted, is its weight
    over that of its parent and DOUBT; its score is the logarithm of the product along its path."""

    store: DenseStore
    neighbours: int = 50
    drafts: int = 10
    needs: Needs = Needs(origin=frozenset({FINAL}))
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def __post_init__(self) -> None:
        need_at_least("Dense", neighbours=(self.neighbours, 1), drafts=(self.drafts, 1))

    def init(self, slots: int) -> LastRounds:
        return {}

    def admit(self, state: LastRounds, slot: int, request: Request) -> int:
        forget(state, [slot])
        return request.num_known

    def propose(self, state: LastRounds, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        if base.tree.num_nodes > 1 or rnd.in_flight:
            return base  # what follows a draft is not known yet
        return as_given(base, found := self.retrieve(state, rnd, limit), columns(found, rnd, limit))

    def retrieve(self, state: LastRounds, rnd: Round, limit: Limit) -> list[Retrieved]:
        found = [NOTHING] * rnd.batch
        sizes = zip(just_ran(state, rnd), limit.depths, limit.budgets, strict=True)
        asked = [b for b, (fresh, depth, nodes) in enumerate(sizes) if fresh and depth and nodes]
        if asked:
            hidden = host_array(rnd.origin[FINAL])[asked]
            for b, places, near in zip(asked, *self.store.nearest(hidden, self.neighbours), strict=True):
                drafts = self.continuations(places, near, rnd.requests[b].root, limit.depths[b])
                found[b] = drafts.best(limit.budgets[b])
        return found

    def continuations(
        self, places: Integer[np.ndarray, "neighbours"], near: Float[np.ndarray, "neighbours"], root: int, depth: int
    ) -> Retrieved:
        """What followed the root at these places, nearest first, merged."""
        store, tokens = self.store, self.store.tokens
        kept = np.flatnonzero((places >= 0) & (tokens[np.maximum(places, 0)] == root))[: self.drafts]
        if not len(kept):
            return NOTHING
        rows = tokens.take(places[kept, None] + np.arange(1, depth + 1), mode="clip").tolist()
        weights = np.exp((near[kept].astype(np.float64) - 1.0) / NARROW).tolist()
        tree = trie_of(rows, weights, store.info.separator)
        above, score = [sum(weights), *tree.weights], [0.0]
        for weight, parent in zip(tree.weights, tree.parents, strict=True):
            score.append(score[parent] + math.log(weight / (above[parent] + DOUBT)))
        return Retrieved(tree.tokens, tree.parents, score[1:])

    def commit(self, state: LastRounds, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        note(state, rnd, outcome)

    def free(self, state: LastRounds, slots: Sequence[int]) -> None:
        forget(state, slots)

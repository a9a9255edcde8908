"""Lengthened: another drafter's chain, continued by phrases that followed its last token before.

    root ── d1 ── d2 ── d3        the chain of the inner drafter
                         ├─ a b c      phrases of the pool behind d3
                         └─ e f g

The target's outputs at all of these nodes, rejected ones too, teach the pool: what the target would have written behind the
discarded end of the chain, and what it would have written instead of each phrase. The pool outlives requests, and each
tenant has its own. All nodes are given, so rules that accept given nodes are exact whatever the pool holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from draftwood.controllers.estimates.survival import Survival
from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.host import host, on_host, put
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Drafter, TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.tree import fit
from draftwood.core.verdict import Outcome
from draftwood.drafters.combine.costs import RoundSeconds, judge
from draftwood.drafters.phrases.mining import corrected, mined, text_phrases
from draftwood.drafters.phrases.phrase_tree import end_of, merged
from draftwood.drafters.phrases.phrases import Phrase, Phrasebook
from draftwood.drafters.retrieval.retrieved import NOTHING, Retrieved
from draftwood.errors import DrafterError, need_at_least

PER_KEY = 20  # phrases of one token
SAMPLED = -0.7  # log-odds by which a guess is less often right where the target samples
REACH, FOLLOW = 0.25, 0.05  # share of chains that are accepted to their end: at first, and how fast rounds correct it


@dataclass(slots=True)
class _Draft:
    """What one sequence got in this round."""

    chain: list[int]
    phrases: list[Phrase]
    found: Retrieved


@dataclass(slots=True)
class _State:
    inner: Any
    book: Phrasebook
    survival: tuple[Survival, Survival]  # of greedy requests, and of sampled ones
    reach: list[float]  # share of chains that are accepted to their end, likewise
    costs: RoundSeconds = field(default_factory=RoundSeconds)
    drafts: dict[int, _Draft] = field(default_factory=dict[int, _Draft])  # by slot


@dataclass(frozen=True, slots=True, eq=False)
class Lengthened:
    """`inner` drafts at most `length` tokens, none behind a path that it gives less than `least` chance; up to `count`
    phrases of `phrase` tokens follow. `copy`: phrases of prompts and answers enter the pool too. `priced`: only phrases that
    are expected to pay, by the limit's cost model."""

    inner: Drafter
    length: int = 12
    phrase: int = 6
    count: int = 3
    least: float = 0.0
    copy: bool = True
    priced: bool = False
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def __post_init__(self) -> None:
        sizes = {"length": (self.length, 1), "phrase": (self.phrase, 1), "count": (self.count, 1)}
        need_at_least("Lengthened", **sizes)

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    def init(self, slots: int) -> _State:
        return _State(self.inner.init(slots), Phrasebook(PER_KEY), (Survival(), Survival(offset=SAMPLED)), [REACH] * 2)

    def admit(self, state: _State, slot: int, request: Request) -> int:
        if self.copy:
            pool = state.book.pool(request.params.tenant)
            for key, phrase in text_phrases(request.known, self.phrase, 0):
                pool.add(key, phrase)
        return self.inner.admit(state.inner, slot, request)

    def begin(self, state: _State, rnd: Round, output: ForwardOutput) -> None:
        self.inner.begin(state.inner, rnd, output)

    def propose(self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        depths, nodes = ([min(x, self.length) for x in each] for each in (limit.depths, limit.budgets))
        own = Limit.of(depths, nodes, rnd.device, limit.proceed, cost_model=limit.cost_model, least=self.least)
        made = self.inner.propose(state.inner, rnd, base, own, policy)
        if base.tree.num_nodes > 1 or rnd.in_flight:
            return made
        if self.priced:
            if limit.cost_model is None:
                raise DrafterError("Lengthened needs a controller that supplies a cost model, such as Priced")
            state.costs.look_up(limit.cost_model, rnd, max(self.length + self.count * self.phrase, *limit.budgets))
        # On an accelerator this reads: which phrases follow depends on the last drafted token.
        columns: list[list[list[int]]] = host(torch.stack([made.tree.tokens, made.tree.live.long()]))
        leaves: list[int] = []
        for b, (slot, request) in enumerate(zip(rnd.host_slots, rnd.requests, strict=True)):
            tokens, live = columns[0][b], columns[1][b]
            leaves.append(max(i for i, on in enumerate(live) if on))
            chain = [token for token, on in zip(tokens[1:], live[1:], strict=True) if on]
            room = limit.depths[b] - len(chain), limit.budgets[b] - len(chain)
            state.drafts[slot] = self._draft(state, slot, request, chain, room)
        return self._with_phrases(made, put(leaves, rnd.device), [state.drafts[slot].found for slot in rnd.host_slots])

    def _draft(self, state: _State, slot: int, request: Request, chain: list[int], room: tuple[int, int]) -> _Draft:
        """The newest phrases behind the last token of the chain; of them as much as pays."""
        depth, nodes = room
        if not chain or depth <= 0 or nodes <= 0:
            return _Draft(chain, [], NOTHING)
        phrases = state.book.pool(request.params.tenant).newest(chain[-1], self.count)
        found = merged([phrase[:depth] for phrase in phrases]).best(nodes)
        if self.priced and found.tokens:
            found = self._paying(state, slot, not request.params.greedy, found, len(chain))
        return _Draft(chain, phrases, found)

    @staticmethod
    def _paying(state: _State, slot: int, sampled: bool, found: Retrieved, before: int) -> Retrieved:
        """The nodes that are expected to save more time than they take behind so many others."""
        alive: list[float] = []
        for parent, estimate in zip(found.parents, found.chances(), strict=True):
            above = alive[parent - 1] if parent else state.reach[sampled]
            alive.append(above * state.survival[sampled].chance(slot, estimate))
        seconds, count = state.costs.seconds, 0
        saved = 0.0
        for k, chance in enumerate(sorted(alive, reverse=True), 1):
            saved += chance * seconds[0]
            if saved > seconds[before + k] - seconds[before]:
                count = k
        return found.best(count, alive) if count else NOTHING

    def _with_phrases(self, made: Proposal, leaves: Tensor, found: Sequence[Retrieved]) -> Proposal:
        """Phrases below the last node of each chain."""
        tree, device, first = made.tree, leaves.device, made.tree.num_nodes
        width = max(len(each.tokens) for each in found)
        if not width:
            return made
        if not on_host(device):  # shapes follow the limit, not the text
            width = self.count * self.phrase
        tokens = put([each.tokens + [-1] * (width - len(each.tokens)) for each in found], device)
        above = put([each.parents + [0] * (width - len(each.parents)) for each in found], device)
        score = put([each.score + [0.0] * (width - len(each.score)) for each in found], device, torch.float32)
        leaf = leaves[:, None]
        grown = tree.append(
            tokens=tokens.clamp_min(0),
            parents=torch.where(above > 0, first - 1 + above, leaf),
            live=tokens >= 0,
            score=(tree.score.gather(1, leaf) + score).to(tree.score.dtype),
            source=torch.ones_like(tokens),
        )
        return replace(
            made,
            tree=grown,
            q_index=fit(made.q_indices(), grown.num_nodes, -1),
            max_depth=made.levels + self.phrase,
            max_children=max(made.siblings, self.count),
            depths=None,
            started=None,
        )

    def commit(self, state: _State, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        self.inner.commit(state.inner, rnd, outcome, output)
        drafts = [state.drafts.pop(slot, None) for slot in rnd.host_slots]
        paths = outcome.verdict.to_host().paths
        columns: list[list[list[int]]] = []
        if any(draft is not None and draft.chain for draft in drafts):
            tree = outcome.proposal.tree
            best = Scored(output, tree, rnd).best()
            columns = host(torch.stack([tree.tokens, tree.parents, tree.live.long(), best]))
        for b, (slot, request, draft) in enumerate(zip(rnd.host_slots, rnd.requests, drafts, strict=True)):
            emitted = [token for token in outcome.emitted[b] if token >= 0]
            if draft is not None and draft.chain:
                self._learn(state, slot, request, draft, [column[b] for column in columns], len(paths[b]) - 1, emitted)
            if self.copy:
                pool, text = (
                    state.book.pool(request.params.tenant),
                    request.known_tail(emitted, self.phrase + len(emitted)),
                )
                for key, phrase in text_phrases(text, self.phrase, len(text) - len(emitted)):
                    pool.add(key, phrase)

    def _learn(
        self,
        state: _State,
        slot: int,
        request: Request,
        draft: _Draft,
        columns: list[list[int]],
        accepted: int,
        emitted: list[int],
    ) -> None:
        """Mine the rejected end of the chain, correct the phrases that were in the tree, and count what was accepted."""
        tokens, parents, live, best = columns
        each = enumerate(zip(parents, tokens, live, strict=True))
        child = {(parent, token): i for i, (parent, token, on) in each if on and i}
        pool, sampled, chain = state.book.pool(request.params.tenant), not request.params.greedy, draft.chain
        nodes = [end_of(child, chain[: i + 1]) for i in range(len(chain))]
        if -1 in nodes:
            return  # the tree was cut
        said = [best[node] for node in nodes]
        for key, phrase in mined(chain, said, self.phrase, accepted):
            pool.add(key, phrase)
        for old in draft.phrases:
            new = corrected(old, said[-1], [best[n] if n >= 0 else -1 for n in behind(child, nodes[-1], old)])
            if new is not None:
                pool.correct(chain[-1], old, new)
        reached = accepted >= len(chain)
        state.reach[sampled] += FOLLOW * (reached - state.reach[sampled])
        if reached and draft.found.tokens:
            judge(state.survival[sampled], slot, draft.found, emitted[len(chain) :])

    def free(self, state: _State, slots: Sequence[int]) -> None:
        self.inner.free(state.inner, slots)
        for slot in slots:
            state.drafts.pop(slot, None)
            for each in state.survival:
                each.free(slot)


def behind(child: dict[tuple[int, int], int], leaf: int, phrase: Phrase) -> list[int]:
    """The nodes of a phrase below a node, -1 where it is not in the tree."""
    nodes: list[int] = []
    for token in phrase:
        leaf = child.get((leaf, token), -1)
        nodes.append(leaf)
    return nodes

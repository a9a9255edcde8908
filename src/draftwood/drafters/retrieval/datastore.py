"""Datastore: what followed the last few tokens in a corpus, as a tree of the most frequent continuations.

No model. A proposal is a few binary searches in a memory-mapped suffix array; nothing is kept between rounds.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from draftwood.core.forward import Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Runner, TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.drafters.retrieval.retrieved import NOTHING, Retrieved, as_given, columns
from draftwood.drafters.retrieval.stores.search import heaviest, longest_match, occurrences
from draftwood.drafters.retrieval.stores.store import Store
from draftwood.drafters.stateless import Stateless
from draftwood.errors import OptionError, need_at_least

OCCURRENCES = 5000
HOW = "`draftwood datastore build FILES... --model NAME --out STORE`, then --option store=STORE"


def open_store(path: Path | None, target: Runner) -> Store:
    """The store at `path`, if its ids mean this target's tokens. OptionError or StoreError says what is wrong."""
    if path is None:
        raise OptionError(f"a datastore is needed, and none is given\nhint: {HOW}")
    tokenizer = target.info.tokenizer
    if tokenizer is None:
        raise OptionError(f"{path} cannot be used: this target has no tokenizer to compare\nhint: load it by name")
    store = Store.open(path)
    store.need_tokenizer(tokenizer.fingerprint)
    return store


@dataclass(frozen=True, slots=True)
class Datastore(Stateless):
    """Follows the longest suffix of the text, of `max_span` down to `min_span` tokens, that occurs in the store. Of its
    occurrences at most `occurrences` are read; a node's score is the logarithm of the share that goes on through it."""

    store: Store
    min_span: int = 2
    max_span: int = 16
    occurrences: int = OCCURRENCES
    needs: Needs = Needs()
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def __post_init__(self) -> None:
        spans = {"min_span": (self.min_span, 1), "max_span": (self.max_span, self.min_span)}
        need_at_least("Datastore", **spans, occurrences=(self.occurrences, 1))

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        return as_given(base, found := self.retrieve(state, rnd, limit), columns(found, rnd, limit))

    def retrieve(self, state: None, rnd: Round, limit: Limit) -> list[Retrieved]:
        self.store.need_whole()
        sequences = zip(rnd.requests, limit.depths, limit.budgets, strict=True)
        return [self._continued(request, depth, nodes) for request, depth, nodes in sequences]

    def _continued(self, request: Request, depth: int, nodes: int) -> Retrieved:
        """The heaviest continuations."""
        if not depth or not nodes:
            return NOTHING
        text = request.known_from(max(0, request.num_known - self.max_span), request.num_known)
        match = longest_match(self.store, text, self.min_span, self.max_span)
        if not match.span:
            return NOTHING
        at = occurrences(self.store, match, self.occurrences)
        found = heaviest(self.store, at, depth, nodes)
        score = [math.log(node.weight / len(at)) for node in found]
        return Retrieved([node.token for node in found], [node.parent for node in found], score)

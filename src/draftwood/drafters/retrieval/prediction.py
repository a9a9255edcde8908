"""Prediction: draft what the caller says the answer will probably be. It may leave that text and follow it again.

No model, microseconds. A request without a prediction costs one comparison a round.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.host_tree import HostTree
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.drafters.retrieval.merged import merge
from draftwood.drafters.retrieval.predicted import Predicted, placed
from draftwood.drafters.retrieval.retrieved import NOTHING, Retrieved, as_given, columns
from draftwood.drafters.retrieval.text_match import Spelling, TextMatch
from draftwood.drafters.stateless import Stateless

LONGEST = 20  # agreement beyond this says nothing more


@dataclass(slots=True)
class _State:
    text: TextMatch | None
    slots: dict[int, Predicted] = field(default_factory=dict[int, Predicted])
    paused: list[Predicted] = field(default_factory=list[Predicted])  # of requests that lost their slot

    def of(self, slot: int, request: Request) -> Predicted:
        """The request's own, also after it lost its slot: what was counted must be kept."""
        known = self.slots.get(slot)
        if known is None or known.request is not request:
            known = next((each for each in self.paused if each.request is request), None) or Predicted.of(request)
            self.paused = [each for each in self.paused if each is not known]
            self.slots[slot] = known
        return known


@dataclass(frozen=True, slots=True)
class Prediction(Stateless):
    """Follows `Request.prediction`. After a token that it does not have, it goes on where the last tokens of the answer
    agree longest with it; several such places become a tree. `spelling`: the tokenizer, to go on where the answer splits
    the same text into other tokens; None: ids alone are compared.

    Counts go into the request's statistics: `accepted_prediction_tokens`, `rejected_prediction_tokens`.
    """

    spelling: Spelling | None = None
    needs: Needs = Needs(prediction=True)
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def init(self, slots: int) -> _State:
        return _State(None if self.spelling is None else TextMatch(self.spelling))

    def propose(self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        if base.tree.num_nodes > 1 or rnd.in_flight:
            return base  # what follows a draft is not known yet
        return as_given(base, found := self.retrieve(state, rnd, limit), columns(found, rnd, limit))

    def retrieve(self, state: _State, rnd: Round, limit: Limit) -> list[Retrieved]:
        if not any(request.prediction for request in rnd.requests):
            return [NOTHING] * rnd.batch
        sequences = zip(rnd.host_slots, rnd.requests, limit.depths, limit.budgets, strict=True)
        return [self._found(state, *each) for each in sequences]

    def _found(self, state: _State, slot: int, request: Request, depth: int, nodes: int) -> Retrieved:
        if not request.prediction:
            return NOTHING
        own = state.of(slot, request)
        own.counts.settle(request)
        own.offers = own.find(depth, state.text) if depth and nodes else []
        return merge([offer.place for offer in own.offers], nodes, log_chance)

    def commit(self, state: _State, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        """Count which nodes of the verified tree were found here, whoever put them there. The tree is read where a request
        has a prediction: one read more on an accelerator."""
        if not state.slots:
            return
        asked = [b for b, slot in enumerate(rnd.host_slots) if slot in state.slots and state.slots[slot].offers]
        if not asked or outcome.proposal.tree.num_nodes == 1:
            return
        tree, paths = HostTree.of(outcome.proposal.tree), outcome.verdict.to_host().paths
        for b in asked:
            own = state.slots[rnd.host_slots[b]]
            found = placed(own.offers, tree.tokens[b], tree.parents[b], tree.scored[b])
            own.offers = []
            kept = [found[node] for node in paths[b][1:] if node in found]
            own.counts.add(len(own.request.output), list(found.values()), kept)

    def free(self, state: _State, slots: Sequence[int]) -> None:
        freed = [state.slots.pop(slot) for slot in slots if slot in state.slots]
        for own in freed:
            own.counts.settle(own.request)
        state.paused = [own for own in (*state.paused, *freed) if not own.request.finished]


def log_chance(match: int) -> float:
    """Log of the chance that the token behind so many agreeing ones is the right one: fitted to texts and their edits."""
    return -math.log1p(math.exp(-0.16 * min(match, LONGEST) - 0.9))

"""Hierarchical: the target drafts with its first layers, reviews with a few more, and verifies with the others.

    layers [0, draft)           one token after another
    layers [draft, review)      over what was drafted for one review; what they reject is forgotten
    layers [review, L)          over the tentative tokens, in the pass that verifies

Every layer of a tentative token is run once: its hidden states and cache entries are those of the target's pass. Nets behind
the exits have entries of their own, for text alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.host import put
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Runner, TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.drafters.layers.exits import NetExit, SharedExit
from draftwood.drafters.layers.first_layers import FirstLayers
from draftwood.drafters.layers.tentative import Tentative
from draftwood.drafters.on_features.feature_text import FeatureText, TextState
from draftwood.errors import DrafterError, OptionError, need_at_least

States = tuple[TextState, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Hierarchical:
    """Drafts leave after `draft` layers and are reviewed after `review`, `per_review` tokens at a time. `nets`: those behind
    the two exits; without any, both are the target's own norm and head. The limit's depth is the number of tentative
    tokens. Always a chain; the policy says only how tokens are picked."""

    draft: int
    review: int
    per_review: int = 2
    nets: tuple[FeatureText, FeatureText] | None = None
    draws: frozenset[Draw] = frozenset(Draw)

    def __post_init__(self) -> None:
        need_at_least("Hierarchical", per_review=(self.per_review, 1))

    @property
    def needs(self) -> Needs:
        taps = frozenset[int]() if self.nets is None else frozenset({self.draft, self.review})
        return Needs(taps=taps, borrow=True, trims=True)

    def init(self, slots: int) -> States:
        return tuple(net.init(slots) for net in self.nets or ())

    def admit(self, state: States, slot: int, request: Request) -> int:
        each = zip(self.nets or (), state, strict=True)
        return min([net.admit(own, slot, request) for net, own in each], default=request.num_known)

    def begin(self, state: States, rnd: Round, output: ForwardOutput) -> None:
        for net, own in zip(self.nets or (), state, strict=True):
            net.begin(own, rnd, output)

    def propose(self, state: States, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        target = rnd.target
        if target is None:
            raise DrafterError("Hierarchical runs layers of the target, and the round has none")
        if base.tree.num_nodes > 1 or (rnd.columns is not None and not len(rnd.columns)):
            return base  # what follows a draft is not known yet
        ready = [net.ready(own, rnd, limit) for net, own in zip(self.nets or (), state, strict=True)]
        if None in ready:
            return base
        each = [one for one in ready if one is not None]
        some = [b for b, slot in enumerate(rnd.host_slots) if all(slot in counts for counts, _ in each)]
        if not some:
            return base
        if len(some) < rnd.batch:  # texts before their first pass are not drafted; the others' layers are run again
            part = self.propose(state, rnd.take(some), base.take(put(some, rnd.device)), limit.take(some), policy)
            return replace(part, started=None).scatter(some, base)
        room = [target.capacity - length for length in rnd.host_lengths]
        if any(most < deep for most, deep in zip(room, limit.depths, strict=True)):
            limit = limit.at_most(room, limit.budgets)
        first = FirstLayers(target, rnd, self.draft)
        both = first, FirstLayers(target, rnd, self.review, below=first)
        if self.nets is None:
            draft, review = (SharedExit(layers, rnd.columns) for layers in both)
            made = Tentative(rnd, limit, policy.draw, self.per_review, draft, review).grow(base)
        else:
            draft, review = (
                NetExit(net, own, rnd, layers, counts, only)
                for net, own, layers, (counts, only) in zip(self.nets, state, both, each, strict=True)
            )
            made = Tentative(rnd, limit, policy.draw, self.per_review, draft, review).grow(base)
            draft.keep()
            review.keep()
        if made.tree.num_nodes == 1 or made.fault is not None:
            return made
        return replace(made, started=both[1].started(made.tree))

    def commit(self, state: States, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        for net, own in zip(self.nets or (), state, strict=True):
            net.commit(own, rnd, outcome, output)

    def free(self, state: States, slots: Sequence[int]) -> None:
        for net, own in zip(self.nets or (), state, strict=True):
            net.free(own, slots)


def exit_layers(target: Runner, draft: int | None, review: int | None) -> tuple[int, int]:
    """Layers of the two exits, by default an eighth and a quarter of the target's. OptionError unless the first is before
    the second, and that one leaves layers to verify with."""
    layers = target.info.num_layers
    first = max(1, round(layers / 8)) if draft is None else draft
    then = max(first + 1, round(layers / 4)) if review is None else review
    if not 1 <= first < then < layers:
        raise OptionError(
            f"drafts that leave after {first} layers and are reviewed after {then} do not fit a target of {layers}\n"
            f"hint: 1 <= draft_layers < review_layers <= {layers - 1}"
        )
    return first, then

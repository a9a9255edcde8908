"""Route: of several drafts the one that is expected to emit most tokens a second, for each sequence and every round.

    retrieved     continuations that host-side drafters found, as many of their nodes as pay
    drafted       a tree of the drafter that runs a model, in its best size
    plain         nothing, where neither pays

    tokens of a round    one, and the chances of its nodes: estimated by their drafter, corrected by what was accepted so far
    seconds of a round   the limit's cost model: a pass over so many tokens, the draft, the rest

The choice uses finished rounds and retrieved tokens, never what a model drafted, so a device is not read. All nodes are
given, and rules that accept given nodes are exact whatever the choice is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from draftwood.controllers.survival import Survival
from draftwood.core import host
from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.host import put
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import CostEstimate, Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Drafter, TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.drafters.combine.arms import Arm, ConfidentChain
from draftwood.drafters.retrieved import NOTHING, Retrieved, Retriever, as_given
from draftwood.errors import DrafterError

REFRESH = 16  # rounds after which costs are looked up again
CHAIN = ConfidentChain()
SAMPLED = -0.7  # log-odds by which a copied token is less often right where the target samples, on the embedded model
HOTTEST = 0.5  # temperature above which a model's best tokens are too seldom the emitted ones
MARGIN = 1.02  # times as fast as plain decoding: what a draft must be expected to be


@dataclass(slots=True)
class _Choice:
    """What one sequence gets in this round: the model's draft, nodes of a retriever (-1: none), or nothing."""

    model: bool = False
    retriever: int = -1
    found: Retrieved = NOTHING
    chances: list[float] = field(
        default_factory=list[float]
    )  # the drafter's own estimate of each node, given its parent


@dataclass(slots=True)
class _State:
    retrievers: list[Any]
    model: Any
    survival: list[tuple[Survival, Survival]]  # of each retriever: greedy requests, sampled ones
    arm: Any
    seconds: list[float] = field(default_factory=list[float])  # of a round, for each sequence, by its nodes; 0: plain
    batch: int = 0  # that they are of
    left: int = 0  # rounds until they are looked up again
    followed: set[int] = field(default_factory=set[int])  # slots whose text the model is shown
    choices: dict[int, _Choice] = field(default_factory=dict[int, _Choice])  # of this round, by slot


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """`retrievers`: sources 0, 1, ..; `model`: the last source, whose drafts are sized by `arm`. `copies`: depth and nodes
    of what is retrieved, where that may be less than the limit. The controller must supply a cost model, as Priced does."""

    retrievers: tuple[Retriever, ...]
    model: Drafter | None = None
    arm: Arm = CHAIN
    copies: tuple[int, int] | None = None
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    @property
    def _drafters(self) -> tuple[Drafter, ...]:
        return self.retrievers if self.model is None else (*self.retrievers, self.model)

    @property
    def needs(self) -> Needs:
        found = Needs()
        for each in self._drafters:
            found = found | each.needs
        return replace(found, trims=False)

    def init(self, slots: int) -> _State:
        return _State(
            [each.init(slots) for each in self.retrievers],
            None if self.model is None else self.model.init(slots),
            [(Survival(), Survival(offset=SAMPLED)) for _ in self.retrievers],
            self.arm.init(),
        )

    def admit(self, state: _State, slot: int, request: Request) -> int:
        """A request at a high temperature is not shown to the model: to follow its text costs more than drafts bring."""
        shared = [each.admit(own, slot, request) for each, own in zip(self.retrievers, state.retrievers, strict=True)]
        state.followed.discard(slot)
        if self.model is not None and request.params.temperature <= HOTTEST:
            state.followed.add(slot)
            shared.append(self.model.admit(state.model, slot, request))
        return min(shared, default=request.num_known)

    def begin(self, state: _State, rnd: Round, output: ForwardOutput) -> None:
        for each, own in zip(self.retrievers, state.retrievers, strict=True):
            each.begin(own, rnd, output)
        followed = [b for b, slot in enumerate(rnd.host_slots) if slot in state.followed]
        if self.model is not None and followed:
            self.model.begin(state.model, rnd if len(followed) == rnd.batch else rnd.take(followed), output)

    def propose(self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        if base.tree.num_nodes > 1 or rnd.in_flight:
            return base  # what follows a draft is not known yet
        if limit.cost_model is None:
            raise DrafterError("Route needs a controller that supplies a cost model, such as Priced")
        self._price(state, rnd, limit, limit.cost_model)
        plain = MARGIN / state.seconds[0]
        copies = limit
        if self.copies is not None:
            copies = limit.at_most([self.copies[0]] * rnd.batch, [self.copies[1]] * rnd.batch)
        found = [each.retrieve(own, rnd, copies) for each, own in zip(self.retrievers, state.retrievers, strict=True)]
        rates = [0.0] * rnd.batch if self.model is None or not state.followed else self.arm.rates(state.arm, rnd)
        chosen: list[_Choice] = []
        for b, slot in enumerate(rnd.host_slots):
            choice, rate = self._best_retrieved(state, rnd, b, [each[b] for each in found], plain)
            if rates[b] > rate and slot in state.followed:
                choice = _Choice(model=True)
            chosen.append(choice)
            state.choices[slot] = choice
        return self._proposal(state, rnd, base, limit, policy, chosen)

    def _price(self, state: _State, rnd: Round, limit: Limit, cost: CostEstimate) -> None:
        state.left -= 1
        most = max(self.arm.nodes, *limit.budgets)
        if state.batch == rnd.batch and state.left > 0 and most < len(state.seconds):
            return
        batch, context, rest = rnd.batch, sum(rnd.host_lengths), cost.rest_seconds()
        state.seconds = [(cost.pass_seconds(batch + batch * n, context) + rest) / batch for n in range(most + 1)]
        state.batch, state.left = batch, REFRESH
        if self.model is not None:
            self.arm.price(state.arm, cost, state.seconds, batch)

    def _best_retrieved(
        self, state: _State, rnd: Round, b: int, found: list[Retrieved], plain: float
    ) -> tuple[_Choice, float]:
        """The retriever and the number of its nodes with most tokens a second, if more than `plain`; and that rate."""
        slot, sampled = rnd.host_slots[b], not rnd.requests[b].params.greedy
        best, most = _Choice(), plain
        for i, each in enumerate(found):
            if not each.tokens:
                continue
            survival = state.survival[i][sampled]
            alive: list[float] = []
            for parent, estimate in zip(each.parents, each.chances(), strict=True):
                alive.append(survival.chance(slot, estimate) * (alive[parent - 1] if parent else 1.0))
            order = sorted(alive, reverse=True)
            total, count = 1.0, 0
            for k, chance in enumerate(order, 1):
                total += chance
                if total / state.seconds[k] > most:
                    most, count = total / state.seconds[k], k
            if count:
                kept = each.best(count, alive)
                best = _Choice(False, i, kept, kept.chances())
        return best, most

    def _proposal(
        self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy, chosen: list[_Choice]
    ) -> Proposal:
        most = max(len(choice.found.tokens) for choice in chosen)
        least = 0 if not most or host.on_host(rnd.device) else 1 << (most - 1).bit_length()
        source = [max(choice.retriever, 0) for choice in chosen]
        given = as_given(base, [choice.found for choice in chosen], min(least, limit.tier.nodes - 1), source)
        asked = [b for b, choice in enumerate(chosen) if choice.model]
        if not asked or self.model is None:
            return given
        some = len(asked) < rnd.batch
        part, own_base = (rnd.take(asked), base.take(put(asked, rnd.device))) if some else (rnd, base)
        own = self.arm.limit(state.arm, part.requests, rnd)
        own = own.at_most([limit.depths[b] for b in asked], [limit.budgets[b] for b in asked])
        made = self.model.propose(state.model, part, own_base, own, policy)
        tree = replace(made.tree, source=torch.where(made.tree.source >= 0, len(self.retrievers), made.tree.source))
        return replace(made, tree=tree).scatter(asked, given)

    def commit(self, state: _State, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        for each, own in zip(self.retrievers, state.retrievers, strict=True):
            each.commit(own, rnd, outcome, output)
        if self.model is not None and not state.followed.isdisjoint(rnd.host_slots):
            self.model.commit(state.model, rnd, outcome, output)
        paths = outcome.verdict.to_host().paths
        for b, (slot, request) in enumerate(zip(rnd.host_slots, rnd.requests, strict=True)):
            choice = state.choices.pop(slot, None)
            if choice is None:
                continue
            for i, each in enumerate(state.survival):
                if i != choice.retriever:
                    each[not request.params.greedy].rest(slot)
            if choice.retriever >= 0:
                self._learn(state, slot, request, choice, outcome.emitted[b])
            if choice.model and outcome.deepest[b]:
                self.arm.learn(state.arm, slot, request, len(paths[b]) - 1, outcome.deepest[b])
            else:
                self.arm.rest(state.arm, slot)

    @staticmethod
    def _learn(state: _State, slot: int, request: Request, choice: _Choice, emitted: list[int]) -> None:
        """Every child of a node that was reached is judged by the token that was emitted there."""
        survival, found = state.survival[choice.retriever][not request.params.greedy], choice.found
        at = 0
        for token in emitted:
            hit = -1
            for i, parent in enumerate(found.parents):
                if parent == at:
                    survival.learn(slot, choice.chances[i], found.tokens[i] == token)
                    hit = i + 1 if found.tokens[i] == token else hit
            if hit < 0:
                break
            at = hit

    def free(self, state: _State, slots: Sequence[int]) -> None:
        for each, own in zip(self._drafters, [*state.retrievers, state.model], strict=False):
            each.free(own, slots)
        state.followed.difference_update(slots)
        for slot in slots:
            state.choices.pop(slot, None)
            for each in state.survival:
                for survival in each:
                    survival.free(slot)
            self.arm.free(state.arm, slot)

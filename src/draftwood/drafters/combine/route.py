"""Route: of several drafts the one that is expected to emit most tokens a second, for each sequence and every round.

    retrieved     continuations that host-side drafters found, as many of their nodes as pay
    drafted       a draft of the drafter that runs a model, as many of its nodes as pay
    fused         both in one tree, where the pass has room for both
    plain         nothing, where none pays

    tokens of a round    one, and the chances of its nodes: estimated by their drafter, corrected by what was accepted so far
    seconds of a round   the limit's cost model: a pass over so many tokens, the draft, the rest

On an accelerator the choice uses finished rounds and retrieved tokens, never what a model drafted, so nothing is read. On
the host the model's probabilities decide how many of its nodes are scored. All nodes are given, and rules that accept given
nodes are exact whatever the choice is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from draftwood.controllers.doubt import Doubt
from draftwood.controllers.estimates.survival import Survival
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
from draftwood.drafters.combine.costs import RoundSeconds, judge, paying_nodes
from draftwood.drafters.combine.fusion import Drafted, beside_unseen, fused, joined
from draftwood.drafters.combine.merge import merge
from draftwood.drafters.combine.several import with_source
from draftwood.drafters.on_features.blocks import Blocks
from draftwood.drafters.on_features.features import Features
from draftwood.drafters.retrieval.retrieved import NOTHING, Listed, Retrieved, Retriever, as_given
from draftwood.errors import CompositionError, DrafterError

CHAIN = ConfidentChain()
SAMPLED = -0.7  # log-odds by which a copied token is less often right where the target samples, on the embedded model
HOTTEST = 0.5  # temperature above which a model's best tokens are too seldom the emitted ones
UNDRAFTED = Drafted([], [], [], [], [], 0)
SHORTEST = 3  # tokens of the shortest answer that a draft may make faster
MARGIN = 1.02  # times as fast as plain decoding: what a draft must be expected to be


@dataclass(slots=True)
class _Choice:
    """What one sequence gets in this round: the model's draft, nodes of a retriever (-1: none), both, or nothing."""

    model: bool = False
    retriever: int = -1
    found: Retrieved = NOTHING
    scored: Drafted | None = None  # the model's nodes that are scored, where they were looked at
    accepted: float = 0.0  # what is expected of the model: accepted tokens, scored nodes, seconds of the draft
    nodes: float = 0.0
    draft: float = 0.0


_PLAIN = _Choice()  # never changed: most rounds of a text that cannot be guessed share it


@dataclass(slots=True)
class _State:
    retrievers: list[Any]
    model: Any
    survival: list[tuple[Survival, Survival]]  # of each retriever: greedy requests, sampled ones
    arm: Any
    doubts: list[Doubt]  # of each retriever, and of the model
    costs: RoundSeconds = field(default_factory=RoundSeconds)
    followed: set[int] = field(default_factory=set[int])  # slots whose text the model is shown
    choices: dict[int, _Choice] = field(default_factory=dict[int, _Choice])  # of this round, by slot

    @property
    def seconds(self) -> list[float]:
        """Of a round, for each sequence, by its nodes; 0: plain."""
        return self.costs.seconds


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """`retrievers`: sources 0, 1, ..; `model`: the last source, whose drafts are sized by `arm`. `copies`: depth and nodes
    of what is retrieved, where that may be less than the limit. `fuse`: a draft of the model may have retrieved nodes
    beside it. The controller must supply a cost model, as Priced does."""

    retrievers: tuple[Retriever, ...]
    model: Drafter | None = None
    arm: Arm = CHAIN
    copies: tuple[int, int] | None = None
    fuse: bool = False
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
            [Doubt() for _ in range(len(self.retrievers) + 1)],
        )

    def admit(self, state: _State, slot: int, request: Request) -> int:
        """A request at a high temperature, or of a token or two, is not shown to the model: to follow its text costs more
        than drafts bring."""
        shared = [each.admit(own, slot, request) for each, own in zip(self.retrievers, state.retrievers, strict=True)]
        state.followed.discard(slot)
        params = request.params
        if self.model is not None and params.temperature <= HOTTEST and params.max_tokens >= SHORTEST:
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
        copies = self._copies(limit)
        found = [each.retrieve(own, rnd, copies) for each, own in zip(self.retrievers, state.retrievers, strict=True)]
        drafts = [] if self.model is None or not state.followed else self.arm.expected(state.arm, rnd)
        if not drafts and not any(each.tokens for some in found for each in some):
            state.choices.update(dict.fromkeys(rnd.host_slots, _PLAIN))
            return base
        chosen: list[_Choice] = []
        for b, slot in enumerate(rnd.host_slots):
            choice, rate = self._best_retrieved(state, rnd, b, [each[b] for each in found], plain)
            if drafts and slot in state.followed and not state.doubts[-1].pauses(slot):
                accepted, nodes, draft = drafts[b]
                if (1 + accepted) / (_between(state.seconds, nodes) + draft) > rate:
                    choice = _Choice(True, choice.retriever, choice.found) if self.fuse else _Choice(True)
                    choice.accepted, choice.nodes, choice.draft = drafts[b]
            chosen.append(choice)
            state.choices[slot] = choice
        return self._proposal(state, rnd, base, limit, policy, chosen)

    def _copies(self, limit: Limit) -> Limit:
        """Of what is retrieved."""
        if self.copies is None:
            return limit
        depth, nodes = self.copies
        if max(limit.depths) <= depth and max(limit.budgets) <= nodes:
            return limit
        return limit.at_most([depth] * len(limit.depths), [nodes] * len(limit.depths))

    def _price(self, state: _State, rnd: Round, limit: Limit, cost: CostEstimate) -> None:
        if state.costs.look_up(cost, rnd, max(self.arm.nodes, *limit.budgets)) and self.model is not None:
            self.arm.price(state.arm, cost, state.seconds, rnd.batch)

    def _best_retrieved(
        self, state: _State, rnd: Round, b: int, found: list[Retrieved], plain: float
    ) -> tuple[_Choice, float]:
        """The retriever and the number of its nodes with most tokens a second, if more than `plain`; and that rate."""
        slot, sampled = rnd.host_slots[b], not rnd.requests[b].params.greedy
        best, most = _PLAIN, plain
        for i, each in enumerate(found):
            if not each.tokens or state.doubts[i].pauses(slot):
                continue
            kept, rate = paying_nodes(each, state.survival[i][sampled], slot, state.seconds, most)
            if kept.tokens:
                best, most = _Choice(False, i, kept), rate
        return best, most

    def _proposal(
        self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy, chosen: list[_Choice]
    ) -> Proposal:
        asked = [b for b, choice in enumerate(chosen) if choice.model]
        if not asked and all(choice is _PLAIN for choice in chosen):
            return base
        if not asked or self.model is None:
            return self._given(rnd, base, limit, chosen)
        some = len(asked) < rnd.batch
        part, own_base = (rnd.take(asked), base.take(put(asked, rnd.device))) if some else (rnd, base)
        ours, room = [chosen[b] for b in asked], limit.take(asked)
        own = self.arm.limit(state.arm, part, room)
        if isinstance(self.arm, ConfidentChain) and host.on_host(rnd.device):
            made, listed = self._looked_at(state, part, own_base, own, policy)
            self._as_much_as_pays(state, part, room, self.arm.drafted(state.arm, part, listed.found), ours)
            if made is None or not _is_started_chain(made, listed) or any(choice.found.tokens for choice in ours):
                return self._from_lists(base, chosen, listed)
            made = self._beginnings(made, ours)
            return made if not some else made.scatter(asked, self._given(rnd, base, limit, chosen, without=asked))
        made = self.model.propose(state.model, part, own_base, own, policy)
        made = with_source(made, len(self.retrievers))
        if self.fuse:
            for choice, most in zip(ours, room.budgets, strict=True):
                seconds = state.seconds[int(choice.nodes) : most + 1]
                if seconds:
                    choice.found = beside_unseen(choice.found, choice.accepted, seconds, choice.draft)
        if any(choice.found.tokens for choice in ours):
            made = merge(made, self._given(part, own_base, room, ours))
        return made if not some else made.scatter(asked, self._given(rnd, base, limit, chosen, without=asked))

    def _looked_at(
        self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy
    ) -> tuple[Proposal | None, Listed]:
        """The model's draft, also as lists. A drafter that has lists need not make tensors of what may not be scored."""
        assert self.model is not None
        if isinstance(self.model, Features | Blocks):
            listed = self.model.listed(state.model, rnd, base, limit, policy)
            if listed is not None:
                return None, listed
        made = self.model.propose(state.model, rnd, base, limit, policy)
        return made, Listed.of(made)

    def _beginnings(self, made: Proposal, chosen: list[_Choice]) -> Proposal:
        """Of each chain as many nodes as are scored. Layers that its drafter has run of them are not run again."""
        most = put([len(choice.scored.tokens) if choice.scored else 0 for choice in chosen], made.tree.tokens.device)
        return with_source(made.keep(made.tree.live.cumsum(1) - 1 <= most[:, None]), len(self.retrievers))

    def _from_lists(self, base: Proposal, chosen: list[_Choice], made: Listed) -> Proposal:
        """What is scored of the model's draft, and what was retrieved: one tree for each sequence."""
        model = len(self.retrievers)
        trees = [joined(choice.scored or UNDRAFTED, choice.found, (model, choice.retriever)) for choice in chosen]
        tokens, parents, score, source = (list(column) for column in zip(*trees, strict=True))
        given = base.with_given(tokens, parents, score, source=source)
        return replace(given, passes=made.passes, pass_seconds=made.seconds, fault=made.fault)

    def _given(
        self, rnd: Round, base: Proposal, limit: Limit, chosen: list[_Choice], without: Sequence[int] = ()
    ) -> Proposal:
        """What was retrieved."""
        found = [NOTHING if b in without else choice.found for b, choice in enumerate(chosen)]
        most = max(len(each.tokens) for each in found)
        least = 0 if not most or host.on_host(rnd.device) else 1 << (most - 1).bit_length()
        source = [max(choice.retriever, 0) for choice in chosen]
        return as_given(base, found, min(least, limit.tier.nodes - 1), source)

    def _as_much_as_pays(
        self, state: _State, rnd: Round, limit: Limit, looked: list[Drafted], chosen: list[_Choice]
    ) -> None:
        """The model's nodes that pay, and the retrieved ones that pay beside them."""
        for b, (drafted, choice) in enumerate(zip(looked, chosen, strict=True)):
            chances: list[float] = []
            if choice.found.tokens:
                survival = state.survival[choice.retriever][not rnd.requests[b].params.greedy]
                chances = [survival.chance(rnd.host_slots[b], x) for x in choice.found.chances()]
            both = fused(drafted, choice.found, chances, state.seconds[: limit.budgets[b] + 1], choice.draft)
            choice.scored, choice.found = both.drafted, both.found

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
            sampled, emitted = not request.params.greedy, outcome.emitted[b]
            for i, each in enumerate(state.survival):
                if i != choice.retriever:
                    each[sampled].rest(slot)
                    state.doubts[i].rest(slot)
            if choice.found.tokens:
                survival = state.survival[choice.retriever][sampled]
                first = {t: c for t, p, c in choice.found.nodes() if not p}
                hit = sum(survival.chance(slot, c) for c in first.values())
                state.doubts[choice.retriever].learn(slot, hit, emitted[0] in first)
                judge(survival, slot, choice.found, emitted)
            if choice.scored is not None and choice.scored.tokens:
                first = {t: c for t, p, c in choice.scored.nodes() if not p}
                state.doubts[-1].learn(slot, sum(first.values()), emitted[0] in first)
            elif not choice.model:
                state.doubts[-1].rest(slot)
            if choice.model:
                counts = len(paths[b]) - 1, outcome.deepest[b]
                self.arm.learn(state.arm, slot, request, choice.scored, emitted, counts)
            elif slot in state.followed:
                self.arm.rest(state.arm, slot)

    def free(self, state: _State, slots: Sequence[int]) -> None:
        for each, own in zip(self._drafters, [*state.retrievers, state.model], strict=False):
            each.free(own, slots)
        state.followed.difference_update(slots)
        for slot in slots:
            state.choices.pop(slot, None)
            for each in state.survival:
                for survival in each:
                    survival.free(slot)
            for each in state.doubts:
                each.free(slot)
            self.arm.free(state.arm, slot)


def refuse_route(drafter: Drafter, inner: str) -> None:
    """For recipes whose controller decides how much is drafted."""
    if isinstance(drafter, Route):
        raise CompositionError(
            f"inner={inner}: its drafter decides itself in each round whether to draft, by the costs of its own controller\n"
            "hint: a drafter that always drafts, such as inner=eagle3, fast_draft or prompt_lookup"
        )


def _is_started_chain(made: Proposal, listed: Listed) -> bool:
    return made.started is not None and all(each.parents == list(range(len(each.parents))) for each in listed.found)


def _between(seconds: list[float], nodes: float) -> float:
    """Seconds of a round for a mean number of nodes."""
    low = min(int(nodes), len(seconds) - 2)
    return seconds[low] + (nodes - low) * (seconds[low + 1] - seconds[low])

"""TrainedProbes: probes behind a token ride along in the pass that verifies; what comes out of them drafts the next round.

    pass     root ─ probe ─ probe        the root's logits are the next token, as in plain decoding
    draft    what is behind the probes: a token for each of the positions after the next one, in one product

Behind which tokens they ride:

    alternating  a round with probes behind the root, and nothing drafted; then a round with a draft, and no probes
    everywhere   behind the root and every drafted token, so whichever is the last accepted one has a draft ready

Probes are the target's own layers over vectors that were trained; they are never accepted, and their entries are dropped
with the round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.controllers.estimates.yields import Yield, Yields
from draftwood.core import host
from draftwood.core.forward import FINAL, ForwardOutput, Needs
from draftwood.core.host import put
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit, Tier
from draftwood.core.proposal import Inputs, Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.tree import PROBE
from draftwood.core.verdict import Outcome
from draftwood.drafters.combine.costs import RoundSeconds
from draftwood.drafters.nets.modules.probes import ProbesModel
from draftwood.drafters.on_features.heads import StageDraft
from draftwood.drafters.stateless import Stateless
from draftwood.errors import DrafterError, OptionError, need_at_least
from draftwood.trees.grow import grow

BEHIND = 1e3  # how far a probe's score lies below its parent's: a budget that is too small costs probes first
MARGIN = 1.02  # times as fast as plain decoding: what drafts must be expected to be


@dataclass(frozen=True, slots=True)
class _Size:
    """Of one sequence in this round."""

    depth: int = 0  # levels of the draft, and its nodes
    nodes: int = 0
    probes: int = 0  # behind each node that has some


@dataclass(slots=True)
class _State:
    slots: int
    worth: tuple[Yields, Yields]  # accepted tokens of a draft: greedy requests, sampled ones
    costs: RoundSeconds = field(default_factory=RoundSeconds)
    draft: float = 0.0  # seconds of one
    sizes: dict[int, _Size] = field(default_factory=dict[int, _Size])  # of this round, by slot
    # By slot: whose last round had probes, and where its text ended then. A new request has none, nor has one that was
    # preempted.
    ready: dict[int, tuple[Request, int]] = field(default_factory=dict[int, tuple[Request, int]])
    features: Float[Tensor, "slots places H"] | None = None  # of the last accepted node, and of the probes behind it
    levels: Int[Tensor, "slots"] | None = None  # how many of these probes were in the pass


@dataclass(frozen=True, slots=True, eq=False)
class TrainedProbes(Stateless):
    """Drafts of `depth` levels and `nodes` nodes (None: a chain), from as many probes as levels. `everywhere`: see above.

    `worth` None: in every round. Else accepted tokens that a draft is expected to have, in greedy texts and in sampled ones:
    then only in rounds where that pays, by the limit's cost model. Rounds correct what is expected."""

    model: ProbesModel
    depth: int
    nodes: int | None = None
    everywhere: bool = False
    worth: tuple[float, float] | None = None
    needs: Needs = Needs(taps=frozenset({FINAL}), trims=True)
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def __post_init__(self) -> None:
        need_at_least("TrainedProbes", depth=(self.depth, 1), nodes=(self.drafted, self.depth))
        if self.depth > self.model.stages:
            raise OptionError(
                f"depth cannot be {self.depth}: the weights draft {self.model.stages} levels at most\n"
                f"hint: depth={self.model.stages}, or leave it out"
            )

    @property
    def drafted(self) -> int:
        """Nodes of the largest draft."""
        return self.depth if self.nodes is None else self.nodes

    @property
    def levels(self) -> int:
        """Of the largest tree."""
        return 2 * self.depth if self.everywhere else self.depth

    @property
    def size(self) -> int:
        """Nodes of the largest tree."""
        return self.drafted + (1 + self.drafted) * self.depth if self.everywhere else self.drafted

    def init(self, slots: int) -> _State:
        greedy, sampled = (Yields(Yield(tokens, 0.0, 0.0)) for tokens in self.worth or (0.0, 0.0))
        return _State(slots, (greedy, sampled))

    def admit(self, state: _State, slot: int, request: Request) -> int:
        state.ready.pop(slot, None)
        return request.num_known

    def propose(self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        if base.tree.num_nodes > 1 or rnd.in_flight:
            return base  # what follows a draft is not known yet
        if self.worth is not None:
            self._price(state, rnd, limit)
        columns = rnd.columns if self.model.ids is None else rnd.trimmed(self.model.ids).columns
        nothing = columns is not None and not len(columns)
        sizes = [_Size() if nothing else self._sized(state, rnd, limit, b) for b in range(rnd.batch)]
        state.sizes.update(zip(rnd.host_slots, sizes, strict=True))
        proposal = base
        if any(size.nodes for size in sizes):
            proposal = self._drafted(state, rnd, base, limit, policy, sizes, columns)
        most = max((size.probes for size in sizes), default=0)
        return self._with_probes(proposal, sizes, rnd.device) if most else proposal

    def _sized(self, state: _State, rnd: Round, limit: Limit, b: int) -> _Size:
        """A draft, if one is ready; and as many probes as there is room for beside it."""
        slot, request, depth, nodes = rnd.host_slots[b], rnd.requests[b], limit.depths[b], limit.budgets[b]
        owner, length = state.ready.get(slot, (None, 0))
        ready = owner is request and length == rnd.host_lengths[b]
        if not (depth and nodes) or not self._pays(state, slot, request, ready):
            return _Size()
        drafted = min(self.drafted, nodes) if ready else 0
        deep = min(self.depth, depth, drafted)
        probes = 0
        if self.everywhere or not ready:
            probes = max(min(self.depth, depth - deep, (nodes - drafted) // (1 + drafted)), 0)
        return _Size(deep, drafted, probes)

    def _drafted(
        self,
        state: _State,
        rnd: Round,
        base: Proposal,
        limit: Limit,
        policy: TreePolicy,
        sizes: list[_Size],
        columns: Int[Tensor, "W"] | None,
    ) -> Proposal:
        """What is behind the probes of the last round, cut to the budget of drafted nodes."""
        assert state.features is not None and state.levels is not None
        depths, budgets = [size.depth for size in sizes], [size.nodes for size in sizes]
        own = Limit.of(depths, budgets, rnd.device, limit.proceed, None, limit.cost_model, limit.least, limit.surer)
        there = host.on_host(rnd.device)
        if not there:
            own = replace(own, planned=Tier(self.depth, 1 + self.drafted))
        levels = torch.where(own.depth > 0, state.levels[rnd.slots], 0)
        draft = StageDraft(self.model, rnd, state.features[rnd.slots], levels, columns, policy.draw.ranked)
        grown = grow(base, own, policy, rnd, draft.step)
        # Nothing of a draft is judged by its distribution, because all of it is given.
        grown = replace(grown, q=None, q_index=None, pass_seconds=draft.seconds).keep(policy.select(grown.tree, own))
        width = int(grown.tree.live.sum(1).max()) if there else min(1 + self.drafted, grown.tree.num_nodes)
        return grown if width == grown.tree.num_nodes else grown.compact(width)

    def _with_probes(self, proposal: Proposal, sizes: list[_Size], device: torch.device) -> Proposal:
        """A branch of probes behind the root of each sequence, or behind all its nodes.

        0 ┬ 1 ┬ 2 ─ 7 ─ 8        probes 3 and 4 behind the root, 5 and 6 behind node 1, 7 and 8 behind node 2
          │   └ 5 ─ 6
          └ 3 ─ 4
        """
        tree = proposal.tree
        on = put([size.probes for size in sizes], device)[:, None, None]
        most = max(size.probes for size in sizes) if host.on_host(device) else self.depth
        above = tree.num_nodes if self.everywhere else 1
        step, node = torch.arange(most, device=device), torch.arange(above, device=device)[:, None]
        parents = torch.where(step == 0, node, tree.num_nodes + node * most + step - 1)
        live = tree.live[:, :above, None] & (step < on)
        shape = (tree.batch, above * most)
        added = tree.append(
            tokens=torch.zeros(shape, dtype=torch.int64, device=device),
            parents=parents.flatten().expand(shape),
            live=live.flatten(1),
            score=(tree.score[:, :above, None] - BEHIND * (1 + step)).flatten(1),
            role=torch.full(shape, PROBE, device=device),
        )
        index = torch.where(live, step, -1).flatten(1)
        none = torch.full((tree.batch, tree.num_nodes), -1, device=device)
        return replace(
            proposal,
            tree=added,
            q_index=None,
            depths=None,
            inputs=Inputs(self.model.vectors[:most], torch.cat([none, index], dim=1)),
            max_depth=proposal.levels + most,
            max_children=proposal.siblings + 1,
        )

    def _price(self, state: _State, rnd: Round, limit: Limit) -> None:
        if limit.cost_model is None:
            raise DrafterError("TrainedProbes needs a controller that supplies a cost model, such as Priced")
        if state.costs.look_up(limit.cost_model, rnd, max(self.size, *limit.budgets)):
            state.draft = limit.cost_model.draft_seconds(self.depth, rnd.batch * self.size) / rnd.batch

    def _pays(self, state: _State, slot: int, request: Request, ready: bool) -> bool:
        """Whether a draft with its probes is expected to be faster than plain decoding. Probes that were run are paid."""
        if self.worth is None or (ready and not self.everywhere):
            return True
        seconds, accepted = state.costs.seconds, state.worth[not request.params.greedy].expected(slot).accepted
        if self.everywhere:
            return (1 + accepted) * seconds[0] > MARGIN * (seconds[self.size] + state.draft)
        return (2 + accepted) * seconds[0] > MARGIN * (seconds[self.depth] + seconds[self.drafted] + state.draft)

    def commit(self, state: _State, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        paths = outcome.verdict.to_host().paths
        probed = False
        for b, (slot, request, path) in enumerate(zip(rnd.host_slots, rnd.requests, paths, strict=True)):
            size = state.sizes.pop(slot, None)
            state.ready.pop(slot, None)
            own = state.worth[not request.params.greedy]
            if size is None or size == _Size():
                own.rest(slot)
            elif size.nodes and outcome.deepest[b]:
                own.learn(slot, Yield(len(path) - 1, 0, 0))
            if size is not None and size.probes:
                state.ready[slot], probed = (request, rnd.host_lengths[b] + len(path)), True
        if probed:
            self._keep(state, rnd, outcome, output)

    def _keep(self, state: _State, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        """Features of the last accepted nodes and of the probes behind them; they are found by their vectors, because node
        numbers may have changed."""
        assert output.token_index is not None
        tree, inputs, verdict = outcome.proposal.tree, outcome.proposal.inputs, outcome.verdict
        at = verdict.path.gather(1, verdict.count[:, None])[:, 0]
        nodes, there = [at], torch.ones_like(at, dtype=torch.bool)
        levels = torch.zeros_like(at)
        for i in range(self.depth):
            if inputs is None:  # another drafter's tree was taken instead
                break
            hit = tree.live & (inputs.index == i) & (tree.parents == at[:, None])
            there = there & hit.any(1)
            at = torch.where(there, hit.int().argmax(1), at)
            nodes.append(at)
            levels = levels + there
        nodes += [at] * (1 + self.model.stages - len(nodes))
        found = output.features[FINAL][output.token_index.gather(1, torch.stack(nodes, dim=1))]
        if state.features is None or state.levels is None:
            state.features = found.new_zeros(state.slots, *found.shape[1:])
            state.levels = torch.zeros(state.slots, dtype=torch.int64, device=found.device)
        state.features[rnd.slots] = found
        state.levels[rnd.slots] = levels

    def free(self, state: _State, slots: Sequence[int]) -> None:
        for slot in slots:
            state.ready.pop(slot, None)
            state.sizes.pop(slot, None)
            for each in state.worth:
                each.free(slot)

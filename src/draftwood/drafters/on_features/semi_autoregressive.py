"""SemiAutoregressive: a net that reads the target's features guesses k levels of a tree in one pass.

    known   x0 x1 x2 x3      root x3      k = 2
    pass 1  block of the pairs (f1,x2) (f2,x3)        guesses levels 1 and 2: one distribution for each level
    pass 2  a block below each node a, b of level 2: (g1,a) (g2,b)        levels 3 and 4 of each path

Every node of a level below the same block has the same distribution. The entries of guessed blocks are never stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.core import host as hosts
from draftwood.core.forward import Needs
from draftwood.core.host import put
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.drafters.nets.runners.semi_runner import Guessed, SemiRunner
from draftwood.drafters.on_features.feature_text import FeatureText, TextState
from draftwood.trees.grow import grow


@dataclass(frozen=True, slots=True, eq=False)
class SemiAutoregressive(FeatureText):
    """`model` runs the net. A text is drafted once it has k pairs."""

    model: SemiRunner

    @property
    def needs(self) -> Needs:
        return Needs(taps=frozenset(self.model.taps), trims=True)

    def propose(self, state: TextState, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        ready = self.ready(state, rnd, limit, 0)
        if ready is None:
            return base
        counts, only = ready
        runner = state.runner
        assert isinstance(runner, SemiRunner)
        ends = {slot: runner.length(slot) + count for slot, count in counts.items()}
        some = [b for b, slot in enumerate(rnd.host_slots) if ends.get(slot, 0) >= self.model.block]
        if not some:
            return base
        if len(some) < rnd.batch:  # texts that are too short are not drafted
            part = self.propose(state, rnd.take(some), base.take(put(some, rnd.device)), limit.take(some), policy)
            return part.scatter(some, base)
        by_level = policy.passes(limit) is None and base.tree.num_nodes == 1
        draft = _Draft(runner, rnd, list(ends.values()), only, policy.draw.ranked, by_level)
        started = perf_counter()
        runner.execute(self.chains(state, counts, wanted=False))
        draft.seconds += perf_counter() - started
        grown = grow(base, limit, policy, rnd, draft.step)
        self.keep_pairs(state, counts)
        return replace(grown, pass_seconds=draft.seconds)


class _Draft:
    """One round's draft in the making. `by_level`: the n-th step is over nodes of level n."""

    def __init__(
        self,
        model: SemiRunner,
        rnd: Round,
        ends: Sequence[int],
        only: Int[Tensor, "W"] | None,
        ranked: bool,
        by_level: bool,
    ) -> None:
        self.model, self.rnd, self.ends, self.only = model, rnd, ends, only
        self.ranked, self.by_level, self.steps, self.passes = ranked, by_level, 0, 0
        self.made: Guessed | None = None
        self.own = torch.zeros_like(rnd.lengths)[:, None]  # of every node the block that begins below it
        self.logits = torch.zeros(0)  # [B, M, n, W]
        self.seconds = 0.0

    def step(self, tree: TokenTree, frontier: Int[Tensor, "B F"]) -> tuple[DraftProbs, None]:
        started, n = perf_counter(), self.model.block
        node = frontier.clamp_min(0)
        depth = tree.depths().gather(1, node)
        begins = (frontier >= 0) & (depth % n == 0)
        if self._asked(begins):
            self._run(tree, node, depth, begins)
        self.steps += 1
        place, above = depth % n, node
        for i in range(n - 1):
            above = torch.where(place > i, tree.parents.gather(1, above).clamp_min(0), above)
        block = self.own.gather(1, above)
        sequence = torch.arange(tree.batch, device=node.device)[:, None]
        rows = (sequence * self.logits.shape[1] + block) * n + place
        logits = self.logits.flatten(0, 2).index_select(0, rows.flatten()).view(*rows.shape, -1)
        ids = self.model.ids if self.only is None else self.only
        probs = self.rnd.probs(logits, tree, node, ids, ranked=self.ranked)
        self.seconds += perf_counter() - started
        return DraftProbs(probs.masked_fill((frontier < 0)[..., None], 0.0).flatten(0, 1), ids), None

    def _asked(self, begins: Bool[Tensor, "B F"]) -> bool:
        """Whether blocks begin in this step. Where the host cannot see it, they are run in any case."""
        if self.by_level:
            return self.steps % self.model.block == 0
        return not hosts.on_host(begins.device) or bool(begins.any())

    def _run(self, tree: TokenTree, node: Tensor, depth: Tensor, begins: Bool[Tensor, "B F"]) -> None:
        n, model = self.model.block, self.model
        self.passes += 1
        if self.made is None:
            self.text = model.text(self.rnd.host_slots, self.ends)
            self.made = model.first(self.text)
            self.logits = model.logits(self.made.outputs, self.only)
            return
        had = self.made.outputs.shape[1]
        path = [node]
        for _ in range(n):
            path.append(tree.parents.gather(1, path[-1]).clamp_min(0))
        tokens = torch.stack([tree.tokens.gather(1, x) for x in path[-2::-1]], dim=-1)
        at = (self.text.length + depth - n).clamp_min(0)[..., None] + torch.arange(n, device=node.device)
        self.own = torch.nn.functional.pad(self.own, (0, tree.num_nodes + 1 - self.own.shape[1]))
        self.made = model.more(self.text, self.made, self.own.gather(1, path[-1]), tokens, at)
        self.logits = torch.cat([self.logits, model.logits(self.made.outputs[:, had:], self.only)], dim=1)
        # Nodes without a block write to a column behind all nodes.
        new = had + torch.arange(node.shape[1], device=node.device).expand_as(node)
        self.own = self.own.scatter(1, torch.where(begins, node, tree.num_nodes), new)[:, :-1]

"""AheadDrafter: a chain from a table, continued while the chain is being scored. Tests AHEAD nodes and the overlapped loop.

0 ── 1 ── 2 ┄┄ 3 ┄┄ 5 ┄┄ 7        a chain of two in flight, two siblings AHEAD of its leaf, two levels below them
          └┄┄┄ 4 ┄┄ 6 ┄┄ 8
"""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.forward import Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Growth, Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import AHEAD
from draftwood.drafters.stateless import Stateless
from draftwood.trees.spread import joined, spread


@dataclass(frozen=True, slots=True, eq=False)
class AheadDrafter(Stateless):
    """q(next | last token) from a table, so that nothing is read from a device. `siblings`: AHEAD children of the leaf;
    several are the best tokens, because no rule verifies the one that becomes a root. `levels`: below them."""

    probs: Float[Tensor, "V V"] = field(repr=False)  # of the next token, by the last one
    siblings: int = 1
    levels: int = 1
    needs: Needs = Needs()
    draws: frozenset[Draw] = frozenset(Draw)

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        first = base.tree.num_nodes
        index = torch.arange(first, device=rnd.device)
        leaf = torch.where(base.tree.live, index, 0).amax(1, keepdim=True)  # of a chain the last live node
        growth = Growth(base.tree, leaf, () if base.q is None else (base.q,), base.q_indices())
        if rnd.in_flight:
            one = self.siblings == 1
            growth = self._deeper(growth, self.siblings, policy.draw if one else Draw.GIVEN, growth.frontier >= 0, rnd)
            for _ in range(self.levels):
                growth = self._deeper(growth, 1, policy.draw, growth.frontier >= 0, rnd)
            wide, deep = self.siblings, 1 + self.levels
        else:
            most = torch.minimum(limit.depth, limit.nodes)[:, None]
            room = most - base.tree.depths().gather(1, leaf)
            wide, deep = 1, limit.tier.depth
            for level in range(deep):
                growth = self._deeper(growth, 1, policy.draw, (growth.frontier >= 0) & (room > level), rnd)
        tree, old = growth.tree, torch.arange(growth.tree.num_nodes, device=rnd.device) < first
        role = torch.where(old, tree.role, AHEAD) if rnd.in_flight else tree.role
        return Proposal(
            replace(tree, role=role),
            policy.draw,
            joined(growth.q),
            growth.q_index,
            passes=base.passes + deep,
            max_depth=base.levels + deep,
            max_children=max(base.siblings, wide),
        )

    def _deeper(self, growth: Growth, count: int, draw: Draw, allowed: Tensor, rnd: Round) -> Growth:
        """One more level, for the frontier nodes that are allowed to have children."""
        node = growth.frontier.clamp_min(0)
        logits = self.probs.log()[growth.tree.tokens.gather(1, node)]  # [B, F, V]
        q = rnd.probs(logits, growth.tree, node, ranked=draw.ranked)
        return spread(growth, DraftProbs(q.flatten(0, 1)), count, draw, allowed, rnd)

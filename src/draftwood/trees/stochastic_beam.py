"""StochasticBeam: the first few continuations to arrive when all of them race, level by level.

Let every text of the tree's depth arrive at a random time, with its probability as its rate. A level of the tree holds the
`beam` beginnings of that length that arrive first: a sample of texts without replacement. Perturbed scores are one way to
draw it; this is another, which needs no times at all. Say that i beginnings n_1 .. n_i of the level above have arrived, in
this order, each with some of its children. What arrives next on this level is

    another child x of some n_j       with mass  q(n_j) q(x | n_j)
    the first child x of n_{i+1}      with mass  (1 - q(n_1) - .. - q(n_i)) q(x | n_{i+1})

because a race has no memory, and because which node arrives says nothing about when. One pick decides, so the
distribution of each child, given its elder siblings, is q without them, however the masses of the nodes were rounded.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.core.proposal import Growth, Proposal
from draftwood.core.round import Round, some
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.errors import need_size
from draftwood.trees.by_level import ByLevel
from draftwood.trees.grow import by_score
from draftwood.trees.spread import next_level, tokens_at, with_distributions


@dataclass(frozen=True, slots=True)
class StochasticBeam(ByLevel):
    """`beam` nodes a level, drawn without replacement over the whole level; siblings stand in the order of arrival."""

    beam: int = 4

    def __post_init__(self) -> None:
        need_size("StochasticBeam", beam=(self.beam, 1))

    @property
    def draw(self) -> Draw:
        return Draw.DISTINCT

    @property
    def shape(self) -> Shape:
        return Shape.CHAIN if self.beam == 1 else Shape.TREE

    def max_children(self, limit: Limit) -> int:
        return self.beam

    def start(self, base: Proposal, limit: Limit, rnd: Round) -> Growth:
        growth = Growth.at_roots(base)
        return replace(growth, carry=torch.ones_like(growth.frontier, dtype=torch.float64))

    def expand(self, growth: Growth, q: DraftProbs, allowed: Bool[Tensor, "B F"], limit: Limit, rnd: Round) -> Growth:
        # Deeper nodes are the first to be cut, so a sequence whose budget is used up draws no more.
        allowed = allowed & (growth.tree.num_drafted() < limit.nodes)[:, None]
        weight: Float[Tensor, "B F"] = growth.carry  # q of the path to each frontier node, those in order of arrival
        places, reached = self._race(q, allowed, weight, rnd, growth.tree.num_nodes)
        (batch, frontier), width = allowed.shape, q.prob.shape[1]
        node = places.clamp_min(0) // width
        each = torch.arange(batch, device=node.device)[:, None] * frontier + node
        tokens = tokens_at(q, places % width, each)
        tree = growth.tree.add(growth.frontier.gather(1, node), tokens, live=places >= 0)
        return replace(next_level(with_distributions(growth, q, allowed), tree), carry=reached)

    def select(self, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
        return by_score(tree, limit)

    def _race(
        self, q: DraftProbs, allowed: Bool[Tensor, "B F"], weight: Float[Tensor, "B F"], rnd: Round, first: int
    ) -> tuple[Int[Tensor, "B beam"], Float[Tensor, "B beam"]]:
        """The columns that arrive first, counted through a sequence's distributions, and the probability of each path."""
        batch, width = allowed.shape
        left = torch.where(allowed[..., None], q.prob.view(batch, width, -1).double(), 0.0)  # [B, F, W] not yet arrived
        waits = (left > 0).any(-1)  # beginnings without a child so far; those that can have none are passed over
        before, behind = weight.cumsum(1) - weight, weight.flip(1).cumsum(1).flip(1)
        # The masses of all that have not arrived, elsewhere too; rounding must not lose the ones that are here.
        others = torch.maximum(1 - before, behind)
        index = torch.arange(width, device=weight.device)
        places: list[Tensor] = []
        reached: list[Tensor] = []
        for turn in range(self.beam):
            following = waits & (index == waits.int().argmax(1, keepdim=True))
            rate = torch.where(following, others, torch.where(waits, 0.0, weight))
            mass = (rate[..., None] * left).flatten(1)
            racing = (mass > 0).any(1)
            at = torch.full_like(allowed[:, 0], first + turn, dtype=torch.int64)
            place = rnd.sample(at, mass, racing) if some(racing) else at.new_full(at.shape, -1)
            at_place, came = place.clamp_min(0)[:, None], (place >= 0)[:, None]
            node = at_place // left.shape[-1]
            reached.append(torch.where(came, weight.gather(1, node) * left.flatten(1).gather(1, at_place), 0.0)[:, 0])
            places.append(place)
            left = torch.where(came, left.flatten(1).scatter(1, at_place, 0.0), left.flatten(1)).view_as(left)
            waits = waits & ~(came & (index == node))
        return torch.stack(places, dim=1), torch.stack(reached, dim=1)

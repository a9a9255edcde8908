"""StartedDrafter: drafts with the target's own first layers and hands over their hidden states, so that the target pass runs
only the remaining layers."""

from dataclasses import dataclass, replace

from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.drafters.layers.first_layers import FirstLayers
from draftwood.drafters.stateless import Stateless
from draftwood.trees.grow import grow


@dataclass(frozen=True, slots=True)
class StartedDrafter(Stateless):
    """An early exit: the target's head on the hidden states after `layers` layers gives the distributions of children.
    `below`: of these layers so many are run in a pass of their own, and what they put out is kept for those who tap it."""

    layers: int
    needs: Needs = Needs(borrow=True)
    draws: frozenset[Draw] = frozenset(Draw)
    below: int = 0

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        assert rnd.target is not None
        target = rnd.target
        below = FirstLayers(target, rnd, self.below) if self.below else None
        first = FirstLayers(target, rnd, self.layers, below)

        def step(tree: TokenTree, frontier: Int[Tensor, "B F"]) -> tuple[DraftProbs, Float[Tensor, "B F H"] | None]:
            logits = target.head(first.at(tree, frontier))
            probs = rnd.probs(logits, tree, frontier.clamp_min(0), ranked=policy.draw.ranked)
            return DraftProbs(probs.flatten(0, 1)), None

        proposal = grow(base, limit, policy, rnd, step)
        return replace(proposal, started=first.started(proposal.tree))

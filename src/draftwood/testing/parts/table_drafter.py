"""TableDrafter: draws from a known distribution without a model or a cache, by the growing loop that every drafter uses."""

from dataclasses import dataclass

import torch
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
from draftwood.drafters.stateless import Stateless
from draftwood.testing.parts.table_model import Conditional
from draftwood.trees.grow import grow


@dataclass(frozen=True, slots=True)
class TableDrafter(Stateless):
    """q(next | text) from a function, shaped by the request's own sampling options as any draft is."""

    probs: Conditional
    needs: Needs = Needs(trims=True)
    draws: frozenset[Draw] = frozenset(Draw)

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        def step(tree: TokenTree, frontier: Int[Tensor, "B F"]) -> tuple[DraftProbs, Float[Tensor, "B F H"] | None]:
            node = frontier.clamp_min(0)
            paths = tree.path_tokens(node).tolist()
            logits = torch.tensor(
                [
                    [self.probs((*request.known, *(t for t in path if t >= 0))) for path in own]
                    for request, own in zip(rnd.requests, paths, strict=True)
                ],
                dtype=torch.float64,
            ).log()
            if rnd.columns is not None:
                logits = logits[..., rnd.columns]
            probs = rnd.probs(logits, tree, node, rnd.columns, ranked=policy.draw.ranked)
            return DraftProbs(probs.flatten(0, 1), rnd.columns), None

        return grow(base, limit, policy, rnd, step)

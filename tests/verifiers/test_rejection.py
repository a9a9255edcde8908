"""Rejection inside: what a residual is, and given tokens beside drawn ones."""

from dataclasses import dataclass
from typing import Any

import torch

from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.probs import TokenProbs
from draftwood.testing.contracts import Always
from draftwood.testing.exact import acceptance, joint_error, leaves
from draftwood.testing.table_drafter import TableDrafter
from draftwood.testing.table_model import TableModel, context_free
from draftwood.trees.static import Static
from draftwood.verifiers.rejection import Rejection

P, Q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)


def test_the_residual_is_what_p_has_more_than_q() -> None:
    p, q = (TokenProbs(torch.tensor([x], dtype=torch.float64), 4) for x in (P, Q))
    got = p.residual(q).prob
    assert torch.allclose(got, torch.tensor([[0.75, 0.25, 0.0, 0.0]], dtype=torch.float64))


def test_equal_distributions_leave_the_distribution_itself_and_no_nan() -> None:
    p = torch.softmax(torch.randn(3, 50, generator=torch.Generator().manual_seed(0)), -1)
    assert torch.equal(TokenProbs(p, p.shape[1]).residual(TokenProbs(p, p.shape[1])).prob, p)


def run(p: Any, q: Any, drafter: Any = None, width: int = 2) -> Any:
    def recipe() -> Recipe:
        return Recipe(
            drafter=drafter or TableDrafter(context_free(q)),
            policy=Static((width,)),
            verifier=Rejection(),
            controller=Always(1, 8),
        )

    return leaves(TableModel(len(p), context_free(p)), recipe)


@dataclass(frozen=True)
class WithGiven(TableDrafter):
    """Drawn children, and beside them every other token as a given child."""

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        drawn = TableDrafter.propose(self, state, rnd, base, limit, policy)
        tokens = torch.arange(4).expand(rnd.batch, -1)
        new = ~(tokens[:, :, None] == drawn.tree.tokens[:, None, 1:]).any(-1)
        tree = drawn.tree.add(torch.zeros_like(tokens), tokens, live=new, copies=0)
        q_index = torch.nn.functional.pad(drawn.q_indices(), (0, 4), value=-1)
        return Proposal(tree, drawn.draw, drawn.q, q_index)


def test_given_children_beside_drawn_ones_are_accepted_by_membership_and_stay_exact() -> None:
    found = run(P, Q, WithGiven(context_free(Q)))
    assert joint_error(found, context_free(P), 4, 1) < 1e-12
    assert acceptance(found) > 1 - 1e-12, "every token is in the tree now: .764 by drawing alone"

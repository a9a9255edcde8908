"""Guessing grows while it pays and pauses when it does not."""

import torch

from draftwood.controllers.heuristic import Heuristic
from draftwood.core.limit import Load
from draftwood.core.proposal import Proposal
from draftwood.core.verdict import Outcome, Times, Verdict
from draftwood.testing.contracts import check_controller, toy_round


class CostEstimate:
    """A pass of n tokens costs 1 + slope * (n - 1)."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        return 1 + self.slope * (tokens - 1)

    def draft_seconds(self, passes: int, nodes: int | None = None) -> float:
        return 0.0

    def rest_seconds(self) -> float:
        return 0.0

    def observe(self, times: Times) -> None:
        return None


def rounds(controller: Heuristic, slope: float, keep: float, count: int) -> list[int]:
    """Depths planned while a share of every draft is accepted."""
    state = controller.init(1)
    rnd = toy_round([[1]], 5)
    load = Load(cost_model=CostEstimate(slope), batch_size=1, waiting=0, context=0)
    depths = []
    for _ in range(count):
        depth = int(controller.plan(state, rnd, load).depth[0])
        depths.append(depth)
        tree = Proposal.roots(rnd.roots()).tree
        for _ in range(depth):
            tree = tree.add(
                torch.tensor([[tree.num_nodes - 1]]), torch.ones(1, 1).long(), live=torch.ones(1, 1).bool(), copies=0
            )
        kept = torch.tensor([int(depth * keep)])
        verdict = Verdict(torch.arange(int(kept) + 1)[None], kept, kept)
        controller.update(state, rnd, Outcome(Proposal(tree), verdict, kept[:, None], Times(), (depth,), (depth,)))
    return depths


def test_the_contract_of_controllers_holds() -> None:
    check_controller(Heuristic())


def test_full_acceptance_makes_drafts_longer() -> None:
    depths = rounds(Heuristic(), slope=0.05, keep=1.0, count=12)
    assert depths[-1] == Heuristic().most and 0 not in depths


def test_a_draft_that_never_pays_is_soon_left_alone() -> None:
    depths = rounds(Heuristic(), slope=0.3, keep=0.0, count=200)
    assert sum(d > 0 for d in depths) < 30, "longer and longer pauses between short trials"
    assert any(d > 0 for d in depths[50:]), "but it is tried again"


def test_what_pays_depends_on_the_machine() -> None:
    cheap, dear = (rounds(Heuristic(), slope, keep=0.5, count=60) for slope in (0.02, 1.0))
    assert sum(d > 0 for d in cheap) > 50 > 25 > sum(d > 0 for d in dear)

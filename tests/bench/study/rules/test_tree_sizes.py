"""What smaller trees would have yielded is counted from the path through a large one."""

from typing import Any

import torch

from draftwood.bench.study.rules.tree_sizes import Counts
from draftwood.controllers.estimates.acceptance import DEPTHS, NODES, Acceptance
from draftwood.core.legal_draws import Draw
from draftwood.core.proposal import Proposal
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Outcome, Times, Verdict
from draftwood.testing.contracts import toy_round


def outcome(path: list[int]) -> Outcome:
    """root - a .5 - c .4, root - b .3 - d .2; nodes 1 to 4 by level."""
    score = torch.tensor([[1.0, 0.5, 0.3, 0.4, 0.2]]).log()
    tree = TokenTree.roots(torch.tensor([1])).append(
        tokens=torch.tensor([[2, 3, 4, 4]]),
        parents=torch.tensor([[0, 0, 1, 2]]),
        live=torch.ones(1, 4, dtype=torch.bool),
        score=score[:, 1:],
    )
    proposal = Proposal(tree, Draw.GIVEN, None, torch.full((1, 5), -1))
    verdict = Verdict(torch.tensor([path]), torch.tensor([len(path) - 1]), torch.tensor([0]))
    return Outcome(proposal, verdict, torch.zeros(1, 3), Times(), drafted=(4,), deepest=(2,))


def counted(path: list[int]) -> dict[str, Any]:
    counts, none = Counts(), Any
    counts(toy_round([[1]], 5), outcome(path), none)  # type: ignore[arg-type]
    return counts.means()


def test_the_best_path_is_a_chain_and_every_tree_has_it() -> None:
    found = counted([0, 1, 3])
    assert found["chains"] == [1, *[2] * (len(DEPTHS) - 1)]
    assert found["trees"][0] == [1] * len(NODES) and found["trees"][1] == [2] * len(NODES)


def test_the_other_path_needs_more_nodes_and_no_chain_has_it() -> None:
    found = counted([0, 2, 4])
    assert found["chains"] == [0] * len(DEPTHS)
    assert found["trees"][0] == [1] * len(NODES), "two nodes on one level hold both"
    by_nodes = dict(zip(NODES, found["trees"][1], strict=True))
    assert (by_nodes[2], by_nodes[3], by_nodes[4]) == (0, 1, 2)


def test_the_means_are_a_profile() -> None:
    means = counted([0, 1, 3])
    assert Acceptance.of({"temperatures": {"0": means, "1": means}}).greedy.accepted((2, 2)) == 2

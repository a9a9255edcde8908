"""Independent paths: every one is a draw of the draft's joint distribution, and merging loses none."""

from typing import Any

import pytest
import torch

from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.tree import TokenTree
from draftwood.errors import OptionError
from draftwood.testing.contracts import Always, toy_round
from draftwood.testing.exact import expected_accepted, joint_error, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, joint, near, random_probs
from draftwood.trees.paths import Paths
from draftwood.verifiers.rejection import Rejection

PROBS = random_probs(3, 7)
DRAFT = near(PROBS, 3, 8, 0.5)


def grown(policy: Paths, rows: int, depth: int, nodes: int) -> TokenTree:
    rnd = toy_round([[1 + b % 2] for b in range(rows)], 3)
    base = Proposal.roots(rnd.roots())
    limit = Limit.of([depth] * rows, [nodes] * rows)
    return TableDrafter(DRAFT).propose(None, rnd, base, limit, policy).tree


def test_copies_are_the_paths_that_go_through_a_node() -> None:
    tree = grown(Paths(4), rows=16, depth=3, nodes=12)
    for b in range(tree.batch):
        through = {0: 4}
        below: dict[int, int] = dict.fromkeys(range(tree.num_nodes), 0)
        for i in range(1, tree.num_nodes):
            if tree.live[b, i]:
                through[i] = int(tree.copies[b, i])
                below[int(tree.parents[b, i])] += through[i]
        depth = tree.depths()[b].tolist()
        assert all(below[i] == count for i, count in through.items() if depth[i] < 3)
        assert sum(count for i, count in through.items() if depth[i] == 3) == 4


def test_every_path_has_the_drafts_joint_distribution() -> None:
    """By many draws: one path's distribution among four."""
    counts = dict.fromkeys(((a, b) for a in range(3) for b in range(3)), 0)
    rows = 3000
    tree = grown(Paths(4), rows=rows, depth=2, nodes=8)
    copies, tokens, parents, live, depth = (
        x.tolist() for x in (tree.copies, tree.tokens, tree.parents, tree.live, tree.depths())
    )
    total = 0
    for b in range(0, rows, 2):  # those that begin with token 1
        for i in range(1, tree.num_nodes):
            if live[b][i] and depth[b][i] == 2:
                counts[tokens[b][parents[b][i]], tokens[b][i]] += copies[b][i]
                total += copies[b][i]
    assert total == 4 * rows // 2
    for path, count in counts.items():
        assert count / total == pytest.approx(joint(DRAFT, (1,), path), abs=0.03)


@pytest.mark.slow  # its distribution is in tests/test_exactness.py, its budget below
def test_two_paths_keep_more_than_one_and_a_level_that_does_not_fit_is_not_drawn() -> None:
    def made(count: int, nodes: int) -> Any:
        return lambda: Recipe(
            drafter=TableDrafter(DRAFT), policy=Paths(count), verifier=Rejection(), controller=Always(2, nodes)
        )

    two = leaves(TableModel(3, PROBS), made(2, 4))
    one = leaves(TableModel(3, PROBS), made(1, 2))
    assert expected_accepted(two) > expected_accepted(one)
    short = leaves(TableModel(3, PROBS), made(2, 3))  # the second level does not fit
    assert joint_error(short, PROBS, 3, 3) < 1e-12 and max(leaf.accepted for leaf in short) == 1


def test_deep_paths_take_no_more_places_than_levels_of_paths() -> None:
    tree = grown(Paths(5), rows=2, depth=12, nodes=60)
    assert tree.num_nodes <= 1 + 5 + 25 * 11
    assert (tree.depths() * tree.live).amax(1).tolist() == [12, 12]


def test_budget_is_kept_and_there_is_one_path_at_least() -> None:
    tree = grown(Paths(3), rows=8, depth=3, nodes=7)
    assert int(tree.num_drafted().max()) <= 7 and int(tree.depths()[tree.live].max()) == 2
    with pytest.raises(OptionError, match="count"):
        Paths(0)
    assert torch.equal(grown(Paths(1), 2, 2, 2).copies[:, 1:], torch.ones(2, 2, dtype=torch.int64))

"""The tree of a given size that the draft expects most from, grown while another level adds enough."""

import pytest

from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.errors import OptionError
from draftwood.testing.contracts import check_drafter, check_policy, toy_round
from draftwood.testing.exact import joint_error
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import context_free, near, random_probs
from draftwood.trees.opt_tree import OptTree, worth
from draftwood.verifiers.match import Match
from small_trees import D, grown, one_round, paths

A, B = 0, 1


def kept(policy: OptTree, limit: Limit, seed: int = 0) -> tuple[tuple[int, ...], ...]:
    tree = grown(policy, random_probs(5, seed), 5, limit).tree
    return tuple(sorted(paths(tree, policy.select(tree, limit))))


def test_the_contracts_hold() -> None:
    check_policy(OptTree(0.1), vocab_size=4)
    check_drafter(TableDrafter(random_probs(6, 3)), OptTree(0.01), 6)


@pytest.mark.parametrize(("depth", "value"), [(1, 1.0), (2, 1.44), (3, 1.476), (4, 1.476)])
def test_fixture_d_is_worth_what_it_is_by_depth(depth: int, value: float) -> None:
    limit = Limit.of([depth], [4])
    tree = grown(OptTree(0.0), context_free(D), 3, limit).tree
    assert worth(tree, limit).tolist() == pytest.approx([value], abs=1e-6)


@pytest.mark.parametrize(("delta", "passes", "value"), [(0.5, 2, 1.44), (0.03, 3, 1.476), (0.0, 3, 1.476)])
def test_fixture_d_is_reproduced(delta: float, passes: int, value: float) -> None:
    limit = Limit.of([10], [4])
    made = grown(OptTree(delta), context_free(D), 3, limit)
    tree = set(paths(made.tree, OptTree().select(made.tree, limit)))
    assert made.passes == passes and worth(made.tree, limit).tolist() == pytest.approx([value], abs=1e-6)
    assert {(A,), (A, A), (B,)} < tree and len(tree) == 4
    assert tree - {(A,), (A, A), (B,)} <= ({(A, B), (B, A)} if delta == 0.5 else {(A, A, A)})


def test_another_level_never_makes_the_best_tree_worse() -> None:
    for seed in range(10):
        values = []
        for depth in range(1, 6):
            limit = Limit.of([depth], [6])
            values.append(float(worth(grown(OptTree(0.0), random_probs(5, seed), 5, limit).tree, limit)))
        assert values == sorted(values)


def test_no_tree_of_its_size_and_depth_is_worth_more() -> None:
    """Against all beginnings of all texts of three tokens."""
    for seed in range(6):
        probs, limit = random_probs(3, seed), Limit.of([3], [5])
        reach = {(): 1.0}
        for _ in range(3):
            reach |= {
                (*path, t): r * probs((0, *path))[t]
                for path, r in list(reach.items())
                for t in range(3)
                if (*path, t) not in reach
            }
        best = sorted(r for path, r in reach.items() if path)[-5:]
        assert float(worth(grown(OptTree(0.0), probs, 3, limit).tree, limit)) == pytest.approx(sum(best), abs=1e-6)


def test_rows_stop_by_themselves() -> None:
    sharp, flat = (0.98, 0.01, 0.01), (1 / 3,) * 3
    rnd, limit = toy_round([[1], [2]], 3), Limit.of([6, 6], [6, 6])
    drafter = TableDrafter(lambda text: sharp if text[0] == 1 else flat)
    made = drafter.propose(None, rnd, Proposal.roots(rnd.roots()), limit, OptTree(0.5))
    depth = (made.tree.depths() * OptTree().select(made.tree, limit)).amax(1).tolist()
    assert depth == [6, 2] and made.passes == 6


def test_rows_are_the_same_alone_and_beside_rows_of_other_sizes() -> None:
    sizes = [(4, 3), (1, 9), (3, 7), (5, 0)]
    limit = Limit.of([d for d, _ in sizes], [n for _, n in sizes])
    for delta in (0.0, 0.2):
        tree = grown(OptTree(delta), random_probs(5, 0), 5, limit).tree
        together = OptTree(delta).select(tree, limit)
        for b, (d, n) in enumerate(sizes):
            assert tuple(sorted(paths(tree, together, b))) == kept(OptTree(delta), Limit.of([d], [n]))


@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_output_is_the_targets(nodes: int) -> None:
    probs = random_probs(3, 7)
    found = one_round(OptTree(0.1), 2, nodes, probs, near(probs, 3, 8, 0.5), vocab_size=3, verifier=Match())
    assert joint_error(found, probs, 3, 3) < 1e-12


@pytest.mark.parametrize("delta", [-1.0, float("nan")])
def test_an_absurd_delta_is_refused(delta: float) -> None:
    with pytest.raises(OptionError, match="delta"):
        OptTree(delta)

"""Topologies from acceptance numbers are the best of their size."""

from collections.abc import Iterator

import pytest

from draftwood.errors import OptionError
from draftwood.trees.best_shape import Topology, expected, positional, ranked

ACCEPTANCE = (0.6, 0.2, 0.1)
EVERYWHERE = [ACCEPTANCE] * 10


def every(nodes: int) -> Iterator[Topology]:
    """All topologies of a size: parents rise, so each new node hangs at the last parent or a later node."""

    def more(parents: Topology) -> Iterator[Topology]:
        if len(parents) == nodes:
            yield parents
            return
        for parent in range(parents[-1] if parents else 0, len(parents) + 1):
            yield from more((*parents, parent))

    yield from more(())


def depth_of(topology: Topology) -> int:
    depths = [0]
    for parent in topology:
        depths.append(depths[parent] + 1)
    return max(depths)


@pytest.mark.parametrize(
    ("whole", "value"), [(1, 1.0), (2, 1.6), (3, 1.96), (4, 2.176), (5, 2.376), (6, 2.5056), (8, 2.7456)]
)
def test_published_recursion_is_reproduced(whole: int, value: float) -> None:
    """`whole` counts the root."""
    topology = positional(ACCEPTANCE, whole - 1, 10)
    assert len(topology) == whole - 1 and expected(topology, EVERYWHERE) == pytest.approx(value, abs=1e-9)


def test_branches_have_the_sizes_they_should() -> None:
    assert positional(ACCEPTANCE, 3, 10) == (0, 1, 2), "a chain"
    assert _branches(positional(ACCEPTANCE, 4, 10)) == [3, 1]
    assert _branches(positional(ACCEPTANCE, 7, 10)) == [5, 2]


def _branches(topology: Topology) -> list[int]:
    root = [0]
    for i, parent in enumerate(topology, start=1):
        root.append(i if parent == 0 else root[parent])
    return [root.count(i) for i, parent in enumerate(topology, start=1) if parent == 0]


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
@pytest.mark.parametrize("acceptance", [(0.6, 0.2, 0.1), (0.5, 0.45), (0.3, 0.25, 0.25, 0.2)])
def test_no_topology_of_its_size_does_better(acceptance: tuple[float, ...], depth: int) -> None:
    for nodes in range(1, 7):
        best = max(
            (
                expected(t, [acceptance] * 10)
                for size in range(nodes + 1)
                for t in every(size)
                if depth_of(t) <= depth and max(map(t.count, t), default=0) <= len(acceptance)
            ),
        )
        found = positional(acceptance, nodes, depth)
        assert len(found) <= nodes and depth_of(found) <= depth
        assert expected(found, [acceptance] * 10) == pytest.approx(best, abs=1e-12)


def test_ranked_takes_the_most_valuable_node_each_time() -> None:
    accuracy = [(0.6, 0.2, 0.1), (0.5, 0.3), (0.4, 0.1)]
    assert ranked(accuracy, 1) == (0,) and ranked(accuracy, 2) == (0, 1)
    # Values: 0 .6, 00 .3, 1 .2, 01 .18, 000 .12, 2 .1, 10 .1
    assert ranked(accuracy, 4) == (0, 0, 1, 1)
    assert ranked(accuracy, 6) == (0, 0, 0, 1, 1, 4)
    assert expected(ranked(accuracy, 4), accuracy) == pytest.approx(1 + 0.6 + 0.3 + 0.2 + 0.18)
    assert len(ranked([(0.5, 0.4)], 9)) == 2, "there are no more places"
    assert ranked([], 3) == () and ranked(accuracy, 0) == ()


def test_where_only_the_rank_matters_both_ways_agree() -> None:
    for nodes in range(1, 20):
        one, other = positional(ACCEPTANCE, nodes, 6), ranked([ACCEPTANCE] * 6, nodes)
        assert expected(one, EVERYWHERE) == pytest.approx(expected(other, EVERYWHERE), abs=1e-12)


def test_parents_stand_level_by_level() -> None:
    for topology in (positional((0.5, 0.3, 0.2), 40, 5), ranked([(0.5, 0.3, 0.2)] * 5, 40)):
        assert list(topology) == sorted(topology) and all(p <= i for i, p in enumerate(topology))


@pytest.mark.parametrize("acceptance", [(), (0.2, 0.6), (0.5, 0.0), (1.5,), (0.9, 0.8), (float("nan"),)])
def test_numbers_that_are_no_falling_probabilities_are_refused(acceptance: tuple[float, ...]) -> None:
    with pytest.raises(OptionError, match="acceptance"):
        positional(acceptance, 4, 2)
    with pytest.raises(OptionError, match="acceptance"):
        ranked([acceptance], 4)

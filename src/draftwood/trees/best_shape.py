"""Shapes of trees from measured acceptance: which node deserves a child, if nothing matters but where it stands.

A topology names the parents of nodes 1, 2, .. in order, the root being 0: level by level, siblings by rank.

    (0, 0, 1, 1)        a root with two children, the first of which has two
"""

import heapq
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from draftwood.errors import OptionError, need_at_least, need_size

Topology = tuple[int, ...]


def positional(acceptance: Sequence[float], nodes: int, depth: int, part: str = "positional") -> Topology:
    """The best tree of at most `nodes` nodes below the root and `depth` levels, if the i-th sibling is the
    accepted one with probability acceptance[i], whenever their parent is and wherever they stand: a dynamic programme.

        T(m, l) = 1 + g(m - 1, 0, l)                                      tokens that m nodes in l levels emit
        g(r, i, l) = max_s acceptance[i] T(s, l - 1) + g(r - s, i + 1, l)       r nodes left for the i-th child and on

    `part`: the name that errors begin with.
    """
    need_size(part, nodes=(nodes, 0), depth=(depth, 0))
    _probabilities(part, acceptance)
    whole = np.ones(nodes + 1)  # T(m, l) by m, as many nodes as a child can have; a subtree need not use all
    sizes: list[list[np.ndarray]] = []  # by level and sibling: the best s by r, 0: no such child
    for _ in range(depth):
        later = np.zeros(nodes + 1)  # g(r, i + 1, l) by r
        level: list[np.ndarray] = []
        for rate in reversed(acceptance):
            now, size = np.zeros(nodes + 1), np.zeros(nodes + 1, dtype=int)
            for r in range(1, nodes + 1):
                worth = rate * whole[1 : r + 1] + later[r - 1 :: -1][:r]
                size[r] = worth.argmax() + 1
                now[r] = worth[size[r] - 1]
            later = now
            level.insert(0, size)
        whole = np.concatenate([[1.0], 1 + later[:-1]])  # entry 0 is never asked for
        sizes.append(level)
    return _built(sizes, nodes)


def _built(sizes: list[list[np.ndarray]], nodes: int) -> Topology:
    """Parents in level order from the best size of every subtree."""
    parents: list[int] = []
    queue = deque([(0, nodes, len(sizes))])  # a node, nodes below it, levels below it
    while queue:
        node, left, levels = queue.popleft()
        for size in sizes[levels - 1] if levels else []:
            if not left:
                break
            share = int(size[left])
            parents.append(node)
            queue.append((len(parents), share - 1, levels - 1))
            left -= share
    return tuple(parents)


def ranked(accuracy: Sequence[Sequence[float]], nodes: int) -> Topology:
    """The tree of `nodes` nodes below the root whose nodes are most often right, if at depth d the i-th best guess is right
    with probability accuracy[d][i], independently of the rest of the path: the most valuable next node, again and again."""
    need_at_least("ranked", nodes=(nodes, 0))
    for rates in accuracy:
        _probabilities("ranked", rates)
    paths: list[tuple[int, ...]] = []
    # minus the value, depth, ranks on the path, value of the parent
    waiting: list[tuple[float, int, tuple[int, ...], float]] = [(-accuracy[0][0], 1, (0,), 1.0)] if accuracy else []
    while waiting and len(paths) < nodes:
        value, depth, path, above = heapq.heappop(waiting)
        paths.append(path)
        sibling = path[-1] + 1
        if sibling < len(accuracy[depth - 1]):
            heapq.heappush(waiting, (-above * accuracy[depth - 1][sibling], depth, (*path[:-1], sibling), above))
        if depth < len(accuracy):
            heapq.heappush(waiting, (value * accuracy[depth][0], depth + 1, (*path, 0), -value))
    paths.sort(key=lambda path: (len(path), path))
    number = {path: i for i, path in enumerate([(), *paths])}
    return tuple(number[path[:-1]] for path in paths)


def expected(topology: Topology, accuracy: Sequence[Sequence[float]]) -> float:
    """Tokens that a pass emits, the target's own counted, if the i-th child at depth d is right with accuracy[d][i]."""
    values, depths, children = [1.0], [0], [0]
    for parent in topology:
        values.append(values[parent] * accuracy[depths[parent]][children[parent]])
        depths.append(depths[parent] + 1)
        children[parent] += 1
        children.append(0)
    return sum(values)


def _probabilities(part: str, rates: Sequence[float]) -> None:
    given: object = rates
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(r, int | float) for r in rates):
        raise OptionError(f"{part}: acceptance cannot be {given!r}\nhint: a tuple of numbers: (0.6, 0.2, 0.1)")
    # Siblings hang on in order, so a later one that does better than an earlier one could not be asked for alone.
    falling = all(a >= b for a, b in pairwise(rates))
    # One of the siblings is accepted at most, so together they stay below 1.
    if not rates or not falling or not all(0 < rate <= 1 for rate in rates) or sum(rates) > 1 + 1e-6:
        raise OptionError(
            f"{part}: acceptance cannot be {tuple(rates)}\nhint: falling probabilities, 1 together at most: 0.6, 0.2, 0.1"
        )

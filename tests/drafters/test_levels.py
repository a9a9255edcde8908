"""Every node of a growing tree is staged behind its parent, in an entry of its own, with and without host reads."""

import random
from typing import Any

import pytest
import torch

from draftwood.core.forward import Span
from draftwood.core.score import KnownTokens
from draftwood.core.tree import TokenTree
from draftwood.drafters.levels import DeviceLevels, HostLevels, levels_of, rows_at
from draftwood.testing.host_reads import HostReads, as_if_on_a_device

KNOWN = [KnownTokens(4, 10, [7, 8, 9]), KnownTokens(1, 0, [5]), KnownTokens(2, 3, [6, 6])]


def grown(rng: random.Random, tree: TokenTree, frontier: list[list[int]], width: int) -> tuple[TokenTree, torch.Tensor]:
    """Children below some nodes of the frontier; the next frontier, -1 where there is none."""
    parents = [[rng.choice([n for n in nodes if n >= 0] or [0]) for _ in range(width)] for nodes in frontier]
    live = [[rng.random() < 0.8 for _ in range(width)] for _ in frontier]
    first = tree.num_nodes
    tokens = torch.tensor([[rng.randrange(60) for _ in range(width)] for _ in frontier])
    tree = tree.add(torch.tensor(parents), tokens, live=torch.tensor(live))
    return tree, torch.tensor([[first + i if on else -1 for i, on in enumerate(each)] for each in live])


@pytest.mark.parametrize("skipped", [None, 1], ids=["all drafted", "one not drafted"])
@pytest.mark.parametrize("kind", [HostLevels, DeviceLevels])
def test_every_node_follows_its_parent_at_the_next_position(kind: Any, skipped: int | None) -> None:
    rng = random.Random(1)
    known = [None if b == skipped else k for b, k in enumerate(KNOWN)]
    levels = kind(known, torch.device("cpu"))
    tree = TokenTree.roots(torch.tensor([9, 5, 6]))
    # node -> entry, position, output; kept by hand. The roots' outputs come first.
    drafted = [(b, k) for b, k in enumerate(known) if k is not None]
    by_hand = {b: {0: (len(k.tokens) - 1, k.done + len(k.tokens) - 1, i)} for i, (b, k) in enumerate(drafted)}
    frontier, first, outputs, checked = [[0]] * 3, [3, 1, 2], len(drafted), 0
    for width in (3, 1, 4, 2):
        tree, nodes = grown(rng, tree, frontier, width)
        level = levels.step(tree, nodes)
        x, places = level.x, level.places
        if kind is DeviceLevels:
            assert x.spans == tuple(
                Span(k.slot, i * width, (i + 1) * width, k.done, first[b], len(k.tokens))
                for i, (b, k) in enumerate(drafted)
            )
            assert places == [b * width + f for b, _ in drafted for f in range(width)], "all places of the frontier"
        else:
            assert places == [b * width + f for b, _ in drafted for f in range(width) if nodes[b, f] >= 0]
            host_input = x.to_host()
            assert host_input.ids == x.ids.tolist() and host_input.entries == x.entries.tolist()
        assert x.want.tolist() == list(range(len(places)))
        fresh: dict[int, list[int]] = {b: [] for b, _ in drafted}
        for at, place in enumerate(places):
            b, f = divmod(place, width)
            fresh[b].append(int(x.entries[at]))
            assert x.slots[at] == KNOWN[b].slot
            if nodes[b, f] < 0:
                continue
            node = int(nodes[b, f])
            entry, position, output = by_hand[b][int(tree.parents[b, node])]
            assert (x.parents[at], x.positions[at], level.above[at]) == (entry, position + 1, output)
            assert x.ids[at] == tree.tokens[b, node]
            by_hand[b][node] = (int(x.entries[at]), position + 1, outputs + at)
            checked += 1
        for b, entries in fresh.items():
            assert entries == list(range(first[b], first[b] + len(entries))), "one entry each, one after another"
            first[b] += len(entries)
        frontier, outputs = nodes.tolist(), outputs + len(places)
    assert checked > (15 if skipped is None else 9)


def test_staged_nodes_are_found_by_their_tokens() -> None:
    """Where the host made the passes: (staged entry of the parent, token) -> staged entry."""
    levels = HostLevels(KNOWN[:1], torch.device("cpu"))
    tree = TokenTree.roots(torch.tensor([9])).add(
        torch.tensor([[0, 0]]), torch.tensor([[3, 4]]), live=torch.ones(1, 2) > 0
    )
    levels.step(tree, torch.tensor([[1, 2]]))
    tree = tree.add(torch.tensor([[2, 1]]), torch.tensor([[5, 5]]), live=torch.ones(1, 2) > 0)
    levels.step(tree, torch.tensor([[3, -1]]))
    assert levels.children == [{(2, 3): 3, (2, 4): 4, (4, 5): 5}]


def test_a_place_without_a_node_changes_no_nodes_entry() -> None:
    """The root's in particular: it is node 0, and so are all places without one."""
    levels = DeviceLevels(KNOWN[:1], torch.device("cpu"))
    tree = TokenTree.roots(torch.tensor([9])).add(
        torch.tensor([[0]]), torch.tensor([[3]]), live=torch.ones(1, 1).bool()
    )
    levels.step(tree, torch.tensor([[-1, 1, -1]]))
    tree = tree.add(torch.tensor([[0, 1]]), torch.tensor([[4, 5]]), live=torch.ones(1, 2).bool())
    level = levels.step(tree, torch.tensor([[2, 3]]))
    assert level.x.parents.tolist() == [2, 4] and level.x.positions.tolist() == [13, 14]
    assert level.above.tolist() == [0, 2]


def test_nothing_is_read_on_an_accelerator() -> None:
    tree = TokenTree.roots(torch.tensor([9, 5, 6]))
    with as_if_on_a_device():
        levels = levels_of([KNOWN[0], None, KNOWN[2]], torch.device("cpu"))
    assert isinstance(levels, DeviceLevels) and isinstance(levels_of(KNOWN, torch.device("cpu")), HostLevels)
    tree = tree.add(torch.zeros(3, 1, dtype=torch.int64), torch.tensor([[1]] * 3), live=torch.ones(3, 1).bool())
    with HostReads() as reads:
        levels.step(tree, torch.ones(3, 1, dtype=torch.int64))
    assert reads.total == 0


@pytest.mark.parametrize("width", [1, 2])
def test_places_without_a_node_are_run_all_the_same(width: int) -> None:
    levels = DeviceLevels(KNOWN[:1], torch.device("cpu"))
    tree = TokenTree.roots(torch.tensor([9]))
    x = levels.step(tree, torch.full((1, width), -1)).x
    assert x.size == width and x.positions.tolist() == [13] * width, "in shapes that the host knows"


def test_rows_stand_at_their_places_and_the_others_are_zero() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert rows_at(x, [0, 1], 2) is x
    assert rows_at(x, [2, 0], 3).tolist() == [[3.0, 4.0], [0.0, 0.0], [1.0, 2.0]]

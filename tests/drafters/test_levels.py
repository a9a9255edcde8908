"""Where nobody looks at a growing tree, every node still stands behind its parent, in an entry of its own."""

import random

import pytest
import torch

from draftwood.core.forward import Span
from draftwood.core.score import KnownTokens
from draftwood.core.tree import TokenTree
from draftwood.drafters.levels import Levels
from draftwood.testing.host_reads import HostReads

KNOWN = [KnownTokens(4, 10, [7, 8, 9]), KnownTokens(1, 0, [5]), KnownTokens(2, 3, [6, 6])]


def grown(rng: random.Random, tree: TokenTree, frontier: list[list[int]], width: int) -> tuple[TokenTree, torch.Tensor]:
    """Children below some nodes of the frontier; the next frontier, -1 where there is none."""
    parents = [[rng.choice([n for n in nodes if n >= 0] or [0]) for _ in range(width)] for nodes in frontier]
    live = [[rng.random() < 0.8 for _ in range(width)] for _ in frontier]
    first = tree.num_nodes
    tokens = torch.tensor([[rng.randrange(60) for _ in range(width)] for _ in frontier])
    tree = tree.add(torch.tensor(parents), tokens, live=torch.tensor(live))
    return tree, torch.tensor([[first + i if on else -1 for i, on in enumerate(each)] for each in live])


def test_every_node_follows_its_parent_at_the_next_position() -> None:
    rng = random.Random(1)
    levels = Levels(KNOWN, torch.device("cpu"))
    assert levels.place.tolist() == [[0], [1], [2]], "the roots' outputs come first"
    tree = TokenTree.roots(torch.tensor([9, 5, 6]))
    # node -> entry, position, place of its output; kept by hand
    by_hand = [{0: (len(k.tokens) - 1, k.done + len(k.tokens) - 1, b)} for b, k in enumerate(KNOWN)]
    frontier, first, outputs, checked = [[0]] * 3, [3, 1, 2], 3, 0
    for width in (3, 1, 4, 2):
        tree, nodes = grown(rng, tree, frontier, width)
        x, above = levels.step(tree, nodes)
        assert x.spans == tuple(
            Span(k.slot, b * width, (b + 1) * width, k.done, first[b], len(k.tokens)) for b, k in enumerate(KNOWN)
        )
        assert x.slots.tolist() == [k.slot for k in KNOWN for _ in range(width)]
        assert x.want.tolist() == list(range(3 * width))
        for b, each in enumerate(nodes.tolist()):
            for f, node in enumerate(each):
                at = b * width + f
                assert x.entries[at] == first[b] + f, "one for every place, whether a node stands there or not"
                if node < 0:
                    continue
                entry, position, place = by_hand[b][int(tree.parents[b, node])]
                assert (x.parents[at], x.positions[at], above[b, f]) == (entry, position + 1, place)
                assert x.ids[at] == tree.tokens[b, node]
                by_hand[b][node] = (first[b] + f, position + 1, outputs + at)
                checked += 1
        frontier, first, outputs = nodes.tolist(), [n + width for n in first], outputs + 3 * width
    assert checked > 15


def test_a_place_without_a_node_takes_nobodys_entry() -> None:
    """The root's in particular: it is node 0, and so are all places without one."""
    levels = Levels(KNOWN[:1], torch.device("cpu"))
    tree = TokenTree.roots(torch.tensor([9])).add(
        torch.tensor([[0]]), torch.tensor([[3]]), live=torch.ones(1, 1).bool()
    )
    levels.step(tree, torch.tensor([[-1, 1, -1]]))
    tree = tree.add(torch.tensor([[0, 1]]), torch.tensor([[4, 5]]), live=torch.ones(1, 2).bool())
    x, above = levels.step(tree, torch.tensor([[2, 3]]))
    assert x.parents.tolist() == [2, 4] and x.positions.tolist() == [13, 14] and above.tolist() == [[0, 2]]


def test_nothing_is_read() -> None:
    tree = TokenTree.roots(torch.tensor([9, 5, 6]))
    levels = Levels(KNOWN, torch.device("cpu"))
    tree = tree.add(torch.zeros(3, 1, dtype=torch.int64), torch.tensor([[1]] * 3), live=torch.ones(3, 1).bool())
    with HostReads() as reads:
        levels.step(tree, torch.ones(3, 1, dtype=torch.int64))
    assert reads.total == 0


@pytest.mark.parametrize("width", [1, 2])
def test_a_batch_of_nothing_is_a_pass_of_nothing(width: int) -> None:
    levels = Levels(KNOWN[:1], torch.device("cpu"))
    tree = TokenTree.roots(torch.tensor([9]))
    x, _ = levels.step(tree, torch.full((1, width), -1))
    assert x.size == width and x.positions.tolist() == [13] * width, "it rides, and nobody looks"

"""Trees are flat arrays; what hangs below what must survive every operation."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.core.proposal import Proposal
from draftwood.core.tree import TokenTree
from draftwood.testing.host_reads import HostReads, as_if_on_a_device


def some_tree(batch: int = 3, nodes: int = 9, seed: int = 0) -> TokenTree:
    rng = random.Random(seed)
    tree = TokenTree.roots(torch.tensor([rng.randrange(50) for _ in range(batch)]))
    for i in range(1, nodes):
        parents = torch.tensor([[rng.randrange(i)] for _ in range(batch)])
        tree = tree.add(parents, torch.full((batch, 1), 100 + i), live=torch.tensor([[rng.random() < 0.9]] * batch))
    return tree


def walk_up(tree: TokenTree, row: int, node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = int(tree.parents[row, node])
    return path


@pytest.mark.parametrize("nodes", [1, 2, 9, 64, 130])
def test_ancestors_and_depths_are_what_walking_up_says(nodes: int) -> None:
    tree = some_tree(nodes=nodes)
    ancestors, depths = tree.ancestors(), tree.depths()
    for row in range(tree.batch):
        for node in range(nodes):
            path = walk_up(tree, row, node)
            assert ancestors[row, node].nonzero()[:, 0].tolist() == sorted(path)
            assert depths[row, node] == len(path) - 1


def test_cutting_a_node_cuts_all_that_hangs_below_it() -> None:
    tree = some_tree()
    mask = torch.ones_like(tree.live)
    mask[:, 1] = False
    kept = tree.keep(mask)
    below = tree.ancestors()[:, :, 1]
    assert not (kept.live & below).any()
    assert (kept.live | below | ~tree.live).all(), "nothing else may be cut"


def test_the_root_cannot_be_cut() -> None:
    kept = some_tree().keep(torch.zeros(3, 9, dtype=torch.bool))
    assert kept.live[:, 0].all() and not kept.live[:, 1:].any()


def test_compacting_keeps_every_live_path() -> None:
    tree = some_tree(nodes=20, seed=4)
    tree = tree.keep(torch.rand(tree.live.shape, generator=torch.Generator().manual_seed(1)) < 0.8)
    small, order = tree.compact(int(tree.live.sum(1).max()))
    for row in range(tree.batch):
        old = {tuple(tree.tokens[row, walk_up(tree, row, n)].tolist()) for n in range(20) if tree.live[row, n]}
        new = {
            tuple(small.tokens[row, walk_up(small, row, n)].tolist())
            for n in range(small.num_nodes)
            if small.live[row, n]
        }
        assert old == new
        assert (small.tokens[row][small.live[row]] == tree.tokens[row, order[row]][small.live[row]]).all()


def test_a_dead_parent_makes_a_dead_child() -> None:
    tree = some_tree(nodes=2)
    dead = tree.keep(torch.tensor([[True, False]] * 3))
    grown = dead.add(
        torch.ones(3, 1, dtype=torch.int64), torch.full((3, 1), 7), live=torch.ones(3, 1, dtype=torch.bool)
    )
    assert not grown.live[:, 2].any()


def test_a_child_is_found_by_its_token() -> None:
    tree = TokenTree.roots(torch.tensor([1, 1]))
    tree = tree.add(torch.zeros(2, 2, dtype=torch.int64), torch.tensor([[5, 6], [6, 7]]), live=torch.ones(2, 2).bool())
    assert tree.child(torch.tensor([0, 0]), torch.tensor([6, 6])).tolist() == [2, 1]
    assert tree.child(torch.tensor([0, 0]), torch.tensor([9, 5])).tolist() == [-1, -1]


def test_path_tokens_leave_the_root_out() -> None:
    tree = TokenTree.roots(torch.tensor([1]))
    for token in (5, 6):
        at = torch.tensor([[tree.num_nodes - 1]])
        tree = tree.add(at, torch.tensor([[token]]), live=torch.ones(1, 1).bool())
    assert tree.path_tokens(torch.tensor([[0, 2]])).tolist() == [[[-1, -1, -1], [-1, 5, 6]]]


MASK = torch.rand(3, 20, generator=torch.Generator().manual_seed(1)) < 0.8


@pytest.mark.parametrize(
    "work",
    [
        lambda tree: tree.depths(),
        lambda tree: tree.keep(MASK),
        lambda tree: tree.keep(MASK, 5),
        lambda tree: tree.keep(MASK).compact(12),
        lambda tree: tree.compact(30),
        lambda tree: tree.resize(7),
        lambda tree: tree.resize(31),
        lambda tree: tree.take(torch.tensor([2, 0])),
        lambda tree: tree.num_drafted(),
        lambda tree: tree.ancestors(),
        lambda tree: tree.path_tokens(torch.tensor([[3, 4]] * 3)),
        lambda tree: tree.add(torch.tensor([[3, -1]] * 3), torch.tensor([[5, 6]] * 3), live=tree.live[:, :2], source=2),
        lambda tree: tree.add(torch.tensor([[3]] * 3), torch.tensor([[5]] * 3), live=tree.live[:, :1], copies=0),
        lambda tree: Proposal(tree, max_depth=9).keep(MASK).compact(9).take(torch.tensor([1])),
    ],
)
def test_no_operation_looks_at_numbers(work: Callable[[TokenTree], Any]) -> None:
    tree = some_tree(nodes=20, seed=4)
    with as_if_on_a_device(), HostReads() as reads:
        work(tree)
    assert reads.total == 0, reads.by_name


@pytest.mark.parametrize("seed", range(5))
def test_a_known_depth_saves_steps_and_changes_nothing(seed: int) -> None:
    tree = some_tree(nodes=20, seed=seed)
    deepest = int(tree.depths().max())
    assert torch.equal(tree.keep(MASK, deepest).live, tree.keep(MASK).live)
    for levels in range(deepest + 2):
        known, true = tree.depths(levels), tree.depths()
        assert torch.equal(known <= levels, true <= levels), "what is deeper is known to be deeper"
        assert torch.equal(known[true <= levels], true[true <= levels])


def test_a_depth_that_is_too_small_cuts_too_little() -> None:
    """The twin: the bound is believed."""
    tree = TokenTree.roots(torch.tensor([7]))
    for i in range(6):
        tree = tree.add(torch.tensor([[i]]), torch.tensor([[i]]), live=torch.tensor([[True]]))
    mask = torch.ones_like(tree.live)
    mask[:, 1] = False
    assert tree.keep(mask, 6).live.sum() == 1 and tree.keep(mask, 1).live.sum() > 1


def test_dead_nodes_may_name_any_parent() -> None:
    tree = some_tree(nodes=20, seed=4)
    wild = replace(tree, parents=torch.where(tree.live, tree.parents, 99))
    for a, b in ((tree, wild), (tree.keep(MASK), wild.keep(MASK))):
        (a, _), (b, _) = a.compact(20), b.compact(20)
        for name in ("tokens", "parents", "live", "copies"):
            assert torch.equal(getattr(a, name)[a.live], getattr(b, name)[a.live])
    assert torch.equal(tree.depths()[tree.live], wild.depths()[tree.live])
    assert torch.equal(tree.ancestors()[tree.live], wild.ancestors()[tree.live])

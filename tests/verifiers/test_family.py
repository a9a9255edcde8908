"""Families are what the tree says: the scored children of every node, siblings in their order."""

import pytest
import torch

from draftwood.core.tree import AHEAD, PROBE, TokenTree
from draftwood.verifiers.family import Families


def random_tree(seed: int, batch: int = 3, nodes: int = 12) -> TokenTree:
    """Rows of all kinds: cut nodes, nodes of another pass, given ones, copies."""
    noise = torch.Generator().manual_seed(seed)
    tree = TokenTree.roots(torch.arange(batch))
    for i in range(1, nodes):
        role = (0, 0, 0, AHEAD, PROBE)[int(torch.randint(5, (), generator=noise))]
        tree = tree.add(
            torch.randint(0, i, (batch, 1), generator=noise),
            torch.full((batch, 1), i),
            live=torch.rand(batch, 1, generator=noise) < 0.8,
            copies=torch.randint(0, 3, (batch, 1), generator=noise),
            role=role,
        )
    return tree


@pytest.mark.parametrize("seed", range(12))
def test_children_stand_in_order_behind_each_other(seed: int) -> None:
    tree = random_tree(seed)
    families = Families.of(tree)
    for node in range(tree.num_nodes):
        at = torch.full((tree.batch,), node)
        here, below = families.at(at), tree.children(at)
        for b in range(tree.batch):
            want = below[b].nonzero()[:, 0].tolist()
            there = here.child[b] > 0
            assert here.child[b][there].tolist() == want and not there[len(want) :].any()
            assert here.token[b][there].tolist() == tree.tokens[b, want].tolist()
            assert here.copies[b].tolist() == [*tree.copies[b, want].tolist(), *[0] * (here.child.shape[1] - len(want))]


def test_empty_places_carry_no_token_and_a_bare_root_has_no_children() -> None:
    for tree in (TokenTree.roots(torch.tensor([3, 4])), TokenTree.roots(torch.zeros(0, dtype=torch.int64))):
        here = Families.of(tree).at(torch.zeros(tree.batch, dtype=torch.int64))
        assert here.child.shape == (tree.batch, 1) and not here.child.any() and (here.token < -1).all()

"""Products along paths: of chains, of trees, and of one draft after another."""

import torch

from draftwood.controllers.stopping.path_product import PathProduct
from draftwood.core.tree import TokenTree


def tree_of(parents: list[int]) -> TokenTree:
    above = torch.tensor([parents], dtype=torch.long)
    tree = TokenTree.roots(torch.tensor([1]))
    return tree.append(
        tokens=torch.ones_like(above),
        parents=above,
        live=torch.ones_like(above, dtype=torch.bool),
        score=torch.zeros(1, len(parents)),
    )


def asked(product: PathProduct, tree: TokenTree, nodes: list[int], factors: list[float]) -> list[float]:
    return product.at(tree, torch.tensor([nodes]), torch.tensor([factors])).tolist()[0]


def test_a_node_has_the_factors_of_its_path() -> None:
    """root ── 1 (.5) ── 3 (.5), 4 (.25)    2 (.9) ── 5 (.5)"""
    product, parents = PathProduct(), [0, 0, 1, 1, 2]
    assert asked(product, tree_of([]), [0], [0.1]) == [1.0], "a root has no factor"
    assert asked(product, tree_of(parents[:2]), [1, 2], [0.5, 0.75]) == [0.5, 0.75]
    assert asked(product, tree_of(parents), [3, 4, 5], [0.5, 0.25, 0.5]) == [0.25, 0.125, 0.375]


def test_padding_changes_nothing_and_a_bare_root_begins_anew() -> None:
    product = PathProduct()
    asked(product, tree_of([]), [0], [1.0])
    assert asked(product, tree_of([0]), [1, -1], [0.5, 0.1]) == [0.5, 1.0]
    assert asked(product, tree_of([0, 1]), [2], [0.5]) == [0.25]
    asked(product, tree_of([]), [0], [1.0])
    assert asked(product, tree_of([0, 1]), [2], [0.5]) == [0.5], "node 1 was not asked about in this draft"

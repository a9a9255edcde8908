"""PathProduct: products along the paths of a growing tree, of factors that become known level by level."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.tree import TokenTree


class PathProduct:
    """Of one draft. A tree that is a bare root begins another one."""

    def __init__(self) -> None:
        self._known: Float[Tensor, "B N"] | None = None

    def at(self, tree: TokenTree, frontier: Int[Tensor, "B F"], factor: Float[Tensor, "B F"]) -> Float[Tensor, "B F"]:
        """Each frontier node's product: its parent's times its own factor. Roots, and nodes that were never asked about,
        have 1."""
        node, count = frontier.clamp_min(0), tree.num_nodes
        if self._known is None or count == 1:
            known = factor.new_ones(tree.tokens.shape)
        else:
            known = torch.nn.functional.pad(self._known, (0, count - self._known.shape[1]), value=1.0)
        above = known.gather(1, tree.parents.gather(1, node).clamp_min(0))
        product = torch.where(node > 0, above * factor, 1.0)
        self._known = known.scatter(1, node, product)  # padding writes the root's 1
        return product

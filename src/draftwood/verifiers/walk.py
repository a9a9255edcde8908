"""The walk every token-level rule shares: choose a token at a node, go on if a child carries it, stop if none does.

A rule returns a token, not a child: whether it is drafted is decided here, so that every rule accepts given children, and
residuals that happen to be drafted. It looks after every level whether anybody goes on; `device_walk` never looks.
"""

from typing import Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Verdict
from draftwood.verifiers.family import Families, Family


class Choose(Protocol):
    """A token with the target's distribution at each node, in the sequences still walking."""

    def __call__(self, here: Family, depth: int, where: Bool[Tensor, "B"], /) -> Int[Tensor, "B"]: ...


def walk(tree: TokenTree, choose: Choose) -> Verdict:
    """From the root down, all sequences together; one that has stopped waits for the others."""
    families = Families.of(tree)
    node = torch.zeros_like(tree.tokens[:, 0])
    alive = torch.ones_like(node, dtype=torch.bool)
    next_token = torch.full_like(node, -1)
    path = [node]
    for depth in range(tree.num_nodes):
        here = families.at(node)
        token = choose(here, depth, alive)
        next_token = torch.where(alive, token, next_token)
        if depth + 1 == tree.num_nodes:
            break
        hit = here.token == token[:, None]
        alive = alive & hit.any(1)
        # Asked on an accelerator, too: a level takes sixty operations, and most trees are left after a few.
        if not bool(alive.any()):
            break
        child = here.child.gather(1, hit.int().argmax(1, keepdim=True))[:, 0]
        node = torch.where(alive, child, node)
        path.append(torch.where(alive, child, -1))
    nodes = torch.stack(path, dim=1)
    return Verdict(path=nodes, count=(nodes >= 0).sum(1) - 1, next_token=next_token)

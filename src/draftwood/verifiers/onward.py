"""The loop that all look-ahead rules share: judge everything drawn below a node at once, and where the token after it is a
given child's, judge again below that child.

    root ── a ── b        a, b drawn: judged together
                 └─ c     c given: reached if the token after b happens to be c
                    └─ d  drawn below it: judged anew, c taking the root's place
"""

from typing import Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.core.host import host
from draftwood.core.host_tree import HostTree, verdict
from draftwood.core.round import Round, some
from draftwood.core.scored import Scored
from draftwood.core.tree import SCORED, TokenTree
from draftwood.core.verdict import Verdict

# Rules define such functions in every round, and making an annotation takes as long as five operations.
Nodes = Int[Tensor, "B"]
Mask = Bool[Tensor, "B"]
Judged = tuple[Nodes, Nodes]


class Judge(Protocol):
    """The deepest accepted node among the drawn ones below `start` (itself if none is), and the token after it."""

    def __call__(self, start: Nodes, where: Mask, /) -> Judged: ...


def onward(tree: TokenTree, target: Scored, rnd: Round, judge: Judge) -> Verdict:
    """From the root on, all sequences together. A drawn node is never reached by its token alone: the rule has judged it."""
    if target.simple:  # of one-hot distributions every rule follows the best token
        return target.host_tree.follow(host(target.best()), rnd.device)
    given = tree.live & (tree.role == SCORED) & (tree.copies == 0)
    last = torch.zeros_like(tree.tokens[:, 0])
    alive = torch.ones_like(last, dtype=torch.bool)
    token = torch.full_like(last, -1)
    start = last
    for _ in range(int(given.sum(1).max()) if tree.batch else 0):  # the root is one of them
        node, said = judge(start, alive)
        last, token = torch.where(alive, node, last), torch.where(alive, said, token)
        hit = given & (tree.parents == last[:, None]) & (tree.tokens == token[:, None])
        alive = alive & hit.any(1)
        if not some(alive):
            break
        start = torch.where(alive, hit.int().argmax(1), start)
    return verdict_at(target.host_tree, last, token)


def drawn(tree: TokenTree) -> Bool[Tensor, "B N"]:
    """Nodes that a rule judges: drawn, live, scored in this pass."""
    return tree.live & (tree.role == SCORED) & (tree.copies > 0)


def inner(tree: TokenTree) -> Bool[Tensor, "B N"]:
    """Nodes with something drawn below them."""
    below = drawn(tree).long()
    return torch.zeros_like(below).scatter_add(1, tree.parents.clamp_min(0), below) > 0


def verdict_at(host_tree: HostTree, last: Int[Tensor, "B"], token: Int[Tensor, "B"]) -> Verdict:
    """The path to a node, and the token after it."""
    nodes, after = host(torch.stack([last, token]))
    return verdict([host_tree.path(b, node) for b, node in enumerate(nodes)], after, last.device)

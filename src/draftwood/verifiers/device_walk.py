"""The walk where looking at a number would stop the device: every shape and every number of steps is known beforehand.

Which token comes after a node does not depend on how the node was reached: random numbers are keyed by node or by depth. So
a rule may choose after all nodes at once, and the accepted path is looked up among its choices:

    0 root, then a        a node is reached if its token was chosen after its parent
    ├─ 1 a, then d   ✓    and its parent is reached
    │  ├─ 3 c
    │  └─ 4 d, then e ✓   path [0, 1, 4], next token e
    └─ 2 b

Where the distributions of all nodes would be too many numbers, the rule chooses level by level, only at the node that each
sequence has come to.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.core.proposal import Proposal
from draftwood.core.scored import Scored
from draftwood.core.tree import SCORED, TokenTree
from draftwood.core.verdict import Verdict

# Probabilities that are made at once for every level that is saved, and levels that count: a level is a hundred launches,
# in which even a small accelerator writes so many numbers a few dozen times; and a tensor of them must fit in memory.
_AT_ONCE, _LEVELS = 2**22, 8


class ChooseAt(Protocol):
    """Tokens after K nodes of each sequence, -1 where none is asked for. `depth`: of each node, or of all of them."""

    def __call__(
        self, nodes: Int[Tensor, "B K"], depth: int | Int[Tensor, "B K"], where: Bool[Tensor, "B K"], /
    ) -> Int[Tensor, "B K"]: ...


def device_walk(proposal: Proposal, target: Scored, choose: ChooseAt) -> Verdict:
    """The verdict that `walk` would find, without a read."""
    tree, levels = proposal.tree, proposal.levels
    entries = tree.batch * tree.num_nodes * target.vocab_size
    # Options that look at a node's path are applied on the host, and only to nodes that were reached: others may have no
    # token left.
    if not target.plain or entries > _AT_ONCE * min(levels + 1, _LEVELS):
        return _by_levels(tree, levels, choose)
    links = Links.of(tree, levels)
    return links.follow(choose(links.index.expand_as(tree.tokens), links.depth, links.scored))


def follow_best(proposal: Proposal, target: Scored) -> Verdict:
    """Where the token after every node is the most probable one."""
    return Links.of(proposal.tree, proposal.levels).follow(target.best())


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """How the nodes of a tree hang together, by pointer doubling: the logarithm of the levels in steps."""

    tree: TokenTree
    levels: int
    scored: Bool[Tensor, "B N"]
    index: Int[Tensor, "N"]
    jumps: tuple[Int[Tensor, "B N"], ...]  # ancestors 1, 2, 4, ... levels up, the root above itself
    depth: Int[Tensor, "B N"]

    @staticmethod
    def of(tree: TokenTree, levels: int) -> "Links":
        index = torch.arange(tree.num_nodes, device=tree.tokens.device)
        depth = (index > 0).long().expand_as(tree.tokens)
        jump, jumps = tree.parents.clamp(0, tree.num_nodes - 1), list[Tensor]()
        for step in range(levels.bit_length()):
            jump = jump.gather(1, jump) if step else jump
            depth = depth + depth.gather(1, jump)
            jumps.append(jump)
        return Links(tree, levels, tree.live & (tree.role == SCORED), index, tuple(jumps), depth)

    def follow(self, choice: Int[Tensor, "B N"]) -> Verdict:
        """From the root down: the chosen token after each node, as long as a scored child carries it."""
        tree = self.tree
        if not self.jumps:  # bare roots
            root = torch.zeros_like(tree.tokens[:, 0])
            return Verdict(path=root[:, None], count=root, next_token=choice[:, 0])
        reached = self.scored & (tree.tokens == choice.gather(1, self.jumps[0]))
        reached[:, 0] = True
        for jump in self.jumps:
            reached = reached & reached.gather(1, jump)
        # One column more takes what was not reached.
        column = torch.where(reached, self.depth, self.levels + 1).clamp_max(self.levels + 1)
        path = torch.full((tree.batch, self.levels + 2), -1, device=column.device)
        path = path.scatter_(1, column, self.index.expand_as(column))[:, :-1]
        last = path.amax(1, keepdim=True)  # parents stand before their children
        return Verdict(path=path, count=(path >= 0).sum(1) - 1, next_token=choice.gather(1, last)[:, 0])


def _by_levels(tree: TokenTree, levels: int, choose: ChooseAt) -> Verdict:
    """All sequences together, to the deepest level that there can be; one that has stopped waits for the others."""
    node = torch.zeros_like(tree.tokens[:, :1])
    alive = torch.ones_like(node, dtype=torch.bool)
    next_token = torch.full_like(node, -1)
    path = [node]
    scored = tree.live & (tree.role == SCORED)
    for depth in range(levels + 1):
        token = choose(node, depth, alive)
        next_token = torch.where(alive, token, next_token)
        if depth < levels:
            hit = scored & (tree.parents == node) & (tree.tokens == token)
            found, child = hit.int().max(1, keepdim=True)
            alive = alive & (found > 0)
            node = torch.where(alive, child, node)
            path.append(torch.where(alive, child, -1))
    nodes = torch.cat(path, dim=1)
    return Verdict(path=nodes, count=(nodes >= 0).sum(1) - 1, next_token=next_token[:, 0])

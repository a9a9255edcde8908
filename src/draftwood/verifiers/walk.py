"""The walk every token-level rule shares: choose a token at a node, go on if a child carries it, stop if none does.

A rule returns a token, not a child: whether it is drafted is decided here, so that every rule accepts given children, and
residuals that happen to be drafted.

`walk` reads after every level whether a sequence goes on. `device_walk` reads nothing: a token after a node does not depend
on how the node was reached, because random numbers are keyed by node or by depth. So a rule may choose after all nodes at
once, and the accepted path is looked up among its choices:

    0 root, then a        a node is reached if its token was chosen after its parent
    ├─ 1 a, then d   ✓    and its parent is reached
    │  ├─ 3 c
    │  └─ 4 d, then e ✓   path [0, 1, 4], next token e
    └─ 2 b

Where the distributions of all nodes would be too many numbers, the rule chooses level by level, only at the node that each
sequence has come to.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.core.proposal import Proposal
from draftwood.core.scored import Scored
from draftwood.core.tree import SCORED, TokenTree
from draftwood.core.verdict import Verdict
from draftwood.verifiers.family import Families, Family

# Probabilities that are made at once for every level that is saved, and levels that count: a level is a hundred launches,
# in which even a small accelerator writes so many numbers a few dozen times; and a tensor of them must fit in memory.
_AT_ONCE, _LEVELS = 2**22, 8


class Choose(Protocol):
    """A token with the target's distribution at each node, in the sequences still walking."""

    def __call__(self, here: Family, depth: int, where: Bool[Tensor, "B"], /) -> Int[Tensor, "B"]: ...


class ChooseAt(Protocol):
    """Tokens after K nodes of each sequence, -1 where none is asked for. `depth`: of each node, or of all of them."""

    def __call__(
        self, nodes: Int[Tensor, "B K"], depth: int | Int[Tensor, "B K"], where: Bool[Tensor, "B K"], /
    ) -> Int[Tensor, "B K"]: ...


def walk(tree: TokenTree, choose: Choose) -> Verdict:
    """From the root down. It reads on an accelerator, too: a level takes sixty operations, and most walks end early."""
    families = Families.of(tree)

    def chosen(node: Tensor, depth: int, alive: Tensor) -> Tensor:
        return choose(families.at(node), depth, alive)

    return walk_nodes(tree, tree.num_nodes - 1, chosen, reads=True)


def device_walk(proposal: Proposal, target: Scored, choose: ChooseAt) -> Verdict:
    """The verdict that `walk` would find, without a host read."""
    tree, levels = proposal.tree, proposal.levels
    entries = tree.batch * tree.num_nodes * target.vocab_size
    # Options that depend on a node's path are applied on the host, and only to nodes that were reached: others may have no
    # token left.
    if target.plain and entries <= _AT_ONCE * min(levels + 1, _LEVELS):
        nodes = torch.arange(tree.num_nodes, device=tree.tokens.device).expand_as(tree.tokens)
        return follow(proposal, choose(nodes, proposal.node_depths(), tree.live & (tree.role == SCORED)))

    def chosen(node: Tensor, depth: int, alive: Tensor) -> Tensor:
        return choose(node[:, None], depth, alive[:, None])[:, 0]

    return walk_nodes(tree, levels, chosen, reads=False)


def follow(proposal: Proposal, choice: Int[Tensor, "B N"]) -> Verdict:
    """From the root down: the chosen token after each node, as long as a scored child carries it."""
    tree, levels = proposal.tree, proposal.levels
    if not levels:  # bare roots
        root = torch.zeros_like(tree.tokens[:, 0])
        return Verdict(path=root[:, None], count=root, next_token=choice[:, 0])
    hit = (tree.role == SCORED) & (tree.tokens == choice.gather(1, tree.parents.clamp(0, tree.num_nodes - 1)))
    reached = tree.keep(hit, levels).live
    # One column more takes what was not reached.
    column = torch.where(reached, proposal.node_depths(), levels + 1).clamp_max(levels + 1)
    path = torch.full((tree.batch, levels + 2), -1, device=column.device)
    path = path.scatter_(1, column, torch.arange(tree.num_nodes, device=column.device).expand_as(column))[:, :-1]
    last = path.amax(1, keepdim=True)  # parents stand before their children
    return Verdict(path=path, count=(path >= 0).sum(1) - 1, next_token=choice.gather(1, last)[:, 0])


def walk_nodes(tree: TokenTree, levels: int, choose: Callable[[Tensor, int, Tensor], Tensor], reads: bool) -> Verdict:
    """All sequences together, one that has stopped waits for the others. `reads`: whether all have stopped is read after
    every level; otherwise the walk goes to the deepest level that there can be."""
    node = torch.zeros_like(tree.tokens[:, 0])
    alive = torch.ones_like(node, dtype=torch.bool)
    next_token = torch.full_like(node, -1)
    path = [node]
    parents = torch.where(tree.live & (tree.role == SCORED), tree.parents, -1)
    for depth in range(levels + 1):
        token = choose(node, depth, alive)
        next_token = torch.where(alive, token, next_token)
        if depth == levels:
            break
        hit = (parents == node[:, None]) & (tree.tokens == token[:, None])
        found, child = hit.int().max(1)
        alive = alive & (found > 0)
        if reads and not bool(alive.any()):
            break
        node = torch.where(alive, child, node)
        path.append(torch.where(alive, child, -1))
    nodes = torch.stack(path, dim=1)
    return Verdict(path=nodes, count=(nodes >= 0).sum(1) - 1, next_token=next_token)

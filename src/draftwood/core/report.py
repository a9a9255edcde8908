"""Report: a round's result as lists. Everything the host wants to know of a round comes in one copy from the device."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.host import host
from draftwood.core.host_tree import HostTree
from draftwood.core.proposal import Proposal
from draftwood.core.tree import SCORED
from draftwood.core.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Report:
    """By sequence. A path begins with the root; `entries`: places of its other nodes behind the root's staged entry."""

    paths: list[list[int]]
    after: list[int]  # the token that follows the path; -1: there is none
    tokens: list[list[int]]  # of the path, the root left out
    sources: list[list[int]]
    entries: list[list[int]]
    drafted: list[int]  # scored nodes below the root
    deepest: list[int]
    faults: list[int]  # what was wrong with the draft, as numbers of core.proposal_checks.REASONS; 0: nothing

    @property
    def emitted(self) -> list[list[int]]:
        """Accepted tokens, then the next root; -1 padded."""
        width = max(map(len, self.paths), default=1)
        both = zip(self.tokens, self.after, strict=True)
        return [[*accepted, last, *[-1] * (width - 1 - len(accepted))] for accepted, last in both]


def from_lists(tree: HostTree, verdict: Verdict) -> Report:
    """Where the trees are lists already."""
    told = verdict.to_host()
    tokens, sources, entries = (
        [[column[node] for node in path[1:]] for column, path in zip(columns, told.paths, strict=True)]
        for columns in (tree.tokens, tree.source, tree.entries)
    )
    return Report(told.paths, told.after, tokens, sources, entries, tree.drafted, tree.deepest, [0] * tree.batch)


def read(proposal: Proposal, verdict: Verdict, faults: Int[Tensor, "B"]) -> Report:
    """The one read of a round. Nodes ride as they stand, so a node's number is its entry."""
    tree, path = proposal.tree, verdict.path
    node = path.clamp_min(0)
    depth = (
        torch.where(tree.live, proposal.node_depths(), 0).amax(1)
        if tree.num_nodes > 1
        else torch.zeros_like(node[:, 0])
    )
    drafted = (tree.live & (tree.role == SCORED)).sum(1) - 1
    columns = [path, tree.tokens.gather(1, node), tree.source.gather(1, node)]
    single = torch.stack([verdict.next_token, drafted, depth, faults], dim=1)
    whole: list[list[int]] = host(torch.cat([*columns, single], dim=1))
    width = path.shape[1]
    paths: list[list[int]] = []
    tokens: list[list[int]] = []
    sources: list[list[int]] = []
    for each in whole:
        size = sum(node >= 0 for node in each[:width])
        paths.append(each[:size])
        tokens.append(each[width + 1 : width + size])
        sources.append(each[2 * width + 1 : 2 * width + size])
    after, nodes, deepest, wrong = ([each[3 * width + i] for each in whole] for i in range(4))
    return Report(paths, after, tokens, sources, [each[1:] for each in paths], nodes, deepest, wrong)

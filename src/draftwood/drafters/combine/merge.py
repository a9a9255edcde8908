"""merge: two proposals as one tree. A path that both have is there once, with the nodes of the first.

        first      second        merged
        0 ── a     0 ── a        0 ── a ── b
          └─ c       │  └─ b       ├─ c
                     └─ d          └─ d

Nodes of the second proposal have no distribution. A node without one is accepted only if the rule emits its token, so it may
stand beside drawn siblings.
"""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core import host as hosts
from draftwood.core.host import host, put
from draftwood.core.proposal import Proposal
from draftwood.core.tree import TokenTree, fit


def merge(first: Proposal, second: Proposal) -> Proposal:
    """The nodes of `first` with their numbers, then the paths of `second` that it does not have, but for probes of `second`
    with inputs of their own, which no tokens name. Draft passes add up."""
    if second.tree.num_nodes == 1:
        return _with_costs(first, second)
    if first.tree.num_nodes == 1:
        return _with_costs(second, first)
    if second.inputs is not None:
        second = second.keep(second.inputs.index < 0)
    ours, theirs, inputs = first.tree, second.tree, first.inputs
    named = ours if inputs is None else replace(ours, live=ours.live & (inputs.index < 0))
    on_host = hosts.on_host(ours.tokens.device)
    same, score = _same_on_host(named, theirs) if on_host else _same(named, theirs, second.levels)
    parents = theirs.parents.clamp_min(0)
    known = same.gather(1, parents)
    behind = ours.num_nodes - 1  # node i of the second tree is node behind + i, because its root is left out
    tree = ours.append(
        tokens=theirs.tokens[:, 1:],
        parents=torch.where(known >= 0, known, parents + behind)[:, 1:],
        live=(theirs.live & (same < 0))[:, 1:],
        score=score[:, 1:],
        copies=torch.zeros_like(theirs.copies)[:, 1:],
        source=theirs.source[:, 1:],
        role=theirs.role[:, 1:],
    )
    joined = replace(
        first,
        tree=tree,
        q_index=fit(first.q_indices(), tree.num_nodes, -1),
        max_depth=max(first.levels, second.levels),
        max_children=first.siblings + second.siblings,
        depths=None,
        started=None,  # layers were run for some of the nodes only
        inputs=None if inputs is None else replace(inputs, index=fit(inputs.index, tree.num_nodes, -1)),
    )
    return _with_costs(joined, second)


def with_known_beginnings(first: Proposal, second: Proposal) -> Proposal:
    """The second draft without the continuations whose first token the first one has not drafted below the root."""
    ours, theirs = first.tree, second.tree
    if theirs.num_nodes == 1:
        return second
    equal = theirs.tokens[:, :, None] == ours.tokens[:, None, :]  # [B, M, N]
    begins = (equal & (ours.live & (ours.parents == 0))[:, None, :]).any(2)
    return second.keep((theirs.parents != 0) | begins)


_Same = tuple[Int[Tensor, "B M"], Float[Tensor, "B M"]]
"""For each node of the second tree the node of the first with the same path, -1 if there is none; and its score, which must
not be above that of the node it will stand below."""


def _same(ours: TokenTree, theirs: TokenTree, levels: int) -> _Same:
    """Without a host read."""
    index = torch.arange(theirs.num_nodes, device=theirs.tokens.device).expand_as(theirs.tokens)
    same, score = torch.where(index == 0, 0, -1), theirs.score
    equal = (theirs.tokens[:, :, None] == ours.tokens[:, None, :]) & ours.live[:, None, :]  # [B, M, N]
    parents = theirs.parents.clamp_min(0)
    for _ in range(levels):
        above = same.gather(1, parents)
        hit = equal & (ours.parents[:, None, :] == above[:, :, None]) & (above >= 0)[:, :, None]
        same = torch.where((index > 0) & hit.any(2), hit.int().argmax(2), same)
        score = torch.where(same >= 0, ours.score.gather(1, same.clamp_min(0)), score)
        score = torch.minimum(score, score.gather(1, parents))
    return same, score


def _same_on_host(ours: TokenTree, theirs: TokenTree) -> _Same:
    """With lists, which are faster for a few nodes."""
    found: list[list[int]] = []
    scores: list[list[float]] = []
    names = ("tokens", "parents", "live", "score")
    each = zip(*(host(getattr(tree, name)) for tree in (ours, theirs) for name in names), strict=True)
    for tokens, parents, live, ranks, others, above, _, own in each:
        nodes: dict[tuple[int, int], int] = {}
        for i in range(len(tokens) - 1, 0, -1):  # of equal siblings the first
            if live[i]:
                nodes[parents[i], tokens[i]] = i
        same, score = [0], [ranks[0]]
        for token, parent, rank in zip(others[1:], above[1:], own[1:], strict=True):
            at = nodes.get((same[parent], token), -1) if same[parent] >= 0 else -1
            same.append(at)
            score.append(min(rank if at < 0 else ranks[at], score[parent]))
        found.append(same)
        scores.append(score)
    device = ours.tokens.device
    return put(found, device), put(scores, device, ours.score.dtype)


def _with_costs(proposal: Proposal, other: Proposal) -> Proposal:
    return replace(
        proposal,
        passes=proposal.passes + other.passes,
        pass_seconds=proposal.pass_seconds + other.pass_seconds,
        fault=proposal.fault or other.fault,
    )

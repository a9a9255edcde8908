"""One more level: children drawn for the nodes of the frontier, and the distributions they were drawn from.

Shapes follow from the frontier and the number of draws, so nothing is read on the host.
"""

from dataclasses import replace
from functools import reduce

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Growth
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree


def spread(
    growth: Growth,
    q: DraftProbs,
    k: int,
    draw: Draw,
    allowed: Bool[Tensor, "B F"],
    rnd: Round,
    source: int = 0,
    counts: Int[Tensor, "B F"] | None = None,
) -> Growth:
    """k children for every allowed frontier node, or as many as `counts` says, in draw order; the new nodes are the next
    frontier.

    Equal iid draws become one node that counts its copies. A draw without replacement stops when nothing is left.
    """
    if rnd.sampler.all_greedy and draw is not Draw.GIVEN:
        # Greedy sequences take the best tokens: independent draws are one and the same, others are the best ones in order.
        k, counts, draw = (1, None, Draw.GIVEN) if draw is Draw.IID else (k, counts, Draw.GIVEN)
    batch, width = growth.frontier.shape
    probs = q.prob.view(batch, width, -1)
    columns = rnd.draw(growth.frontier.clamp_min(0), probs, k, draw, allowed)
    if counts is not None:
        columns = torch.where(torch.arange(k, device=columns.device) < counts[..., None], columns, -1)
    return with_children(growth, q, columns, draw, allowed, source)


def with_children(
    growth: Growth,
    q: DraftProbs,
    columns: Int[Tensor, "B F k"],
    draw: Draw,
    allowed: Bool[Tensor, "B F"],
    source: int = 0,
) -> Growth:
    """Nodes for the columns drawn at the frontier, -1 for none and wherever none was allowed. Frontier nodes are live, so
    nothing is checked again."""
    tree = growth.tree
    live, tokens = columns >= 0, tokens_at(q, columns)
    copies = None if draw is Draw.GIVEN else live.long()
    if draw is Draw.IID and columns.shape[-1] > 1:
        counted, first = _merge(columns)
        live = live & first
        copies = torch.where(live, counted, 0)
    parents = growth.frontier.clamp_min(0)[..., None].expand_as(tokens).flatten(1)
    grown = tree.append(
        tokens=tokens.flatten(1),
        parents=parents,
        live=live.flatten(1),
        score=tree.score.gather(1, parents) - 1,
        copies=None if copies is None else copies.flatten(1),
        source=None if source == 0 else torch.full_like(parents, source),
    )
    return next_level(growth if draw is Draw.GIVEN else with_distributions(growth, q, allowed), grown)


def next_level(growth: Growth, grown: TokenTree) -> Growth:
    """The new nodes of a grown tree are the next frontier, and have no distributions yet."""
    first, nodes = growth.tree.num_nodes, grown.num_nodes
    fresh = torch.arange(first, nodes, device=grown.tokens.device)
    deeper = growth.deeper(grown, torch.where(grown.live[:, first:], fresh, -1), growth.carry)
    return replace(deeper, q_index=torch.nn.functional.pad(growth.q_index, (0, nodes - first), value=-1))


def whole_level(allowed: Bool[Tensor, "B F"], draws: int, limit: Limit) -> Bool[Tensor, "B F"]:
    """Only in sequences whose budget holds so many draws. Equal draws share a node, so how many nodes a level takes depends
    on what was drawn. Cutting afterwards would depend on that too; a level is therefore drawn whole or not at all."""
    return allowed if min(limit.budgets) >= draws else allowed & (limit.nodes >= draws)[:, None]


def without_frontier(growth: Growth) -> Growth:
    """No node gets children any more, and no draft pass is run to find that out."""
    return replace(growth, frontier=growth.frontier[:, :0])


def with_distributions(growth: Growth, q: DraftProbs, drawn: Bool[Tensor, "B F"]) -> Growth:
    """The frontier's distributions kept for the rule, as those that children of the `drawn` nodes come from."""
    first = sum(part.num_distributions for part in growth.q)
    at = growth.frontier.clamp_min(0)
    own = torch.arange(first, first + at.numel(), device=at.device).view_as(at)
    own = torch.where(drawn, own, growth.q_index.gather(1, at))
    return replace(growth, q=(*growth.q, q), q_index=growth.q_index.scatter(1, at, own))


def joined(parts: tuple[DraftProbs, ...]) -> DraftProbs | None:
    """The distributions of all levels one after another: copied once, not once for every level below them."""
    if not parts:
        return None
    ids = parts[0].ids
    if len(parts) > 1 and all(part.ids is ids for part in parts) and (ids is None or ids.ndim == 1):
        return DraftProbs(torch.cat([part.prob for part in parts]), ids)
    return reduce(DraftProbs.join, parts)


def tokens_at(
    q: DraftProbs, columns: Int[Tensor, "*S"], distributions: Int[Tensor, "*#S"] | None = None
) -> Int[Tensor, "*S"]:
    """Tokens of some columns, any token for -1. `distributions`: which one each column belongs to; by default all in turn,
    with as many columns as the last axis has."""
    at = columns.clamp_min(0)
    if q.ids is None or q.ids.ndim == 1:
        return at if q.ids is None else q.ids[at]
    if distributions is None:
        distributions = torch.arange(q.num_distributions, device=at.device).view(*at.shape[:-1], 1)
    return q.ids[distributions, at]


def _merge(tokens: Int[Tensor, "B F k"]) -> tuple[Int[Tensor, "B F k"], Bool[Tensor, "B F k"]]:
    """How often each first appearance was drawn, and which entries are first appearances."""
    same = tokens[..., :, None] == tokens[..., None, :]
    earlier = torch.ones_like(same[0, 0]).tril(-1)
    first = ~(same & earlier).any(-1)
    return torch.where(first, same.sum(-1), 0), first

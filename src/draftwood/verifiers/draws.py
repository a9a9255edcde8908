"""What the rules for several draws read at a node: how many draws there are, which law they came from, which comes next."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.proposal import Proposal
from draftwood.core.round import Round, some


def law_at(
    proposal: Proposal, node: Int[Tensor, "B"], where: Bool[Tensor, "B"], like: Float[Tensor, "B V"]
) -> Float[Tensor, "B V"]:
    """q of the children of one node per row, over the columns and in the precision of `like`; zeros elsewhere, and
    everywhere where nothing was drawn."""
    if proposal.q is None:
        return torch.zeros_like(like)
    rows = proposal.rows().gather(1, node[:, None])[:, 0]
    return proposal.q.dense(torch.where(where, rows, -1), like.shape[-1]).to(like.dtype)


def merged(left: Int[Tensor, "B C"]) -> Bool[Tensor, "B"]:
    """Where equal draws share a child and others stand beside it, so that their order is not the children's."""
    return (left > 1).any(1) & ((left > 0).sum(1) > 1)


def next_draw(
    left: Int[Tensor, "B C"], shuffle: Bool[Tensor, "B"], rnd: Round, node: Int[Tensor, "B"], turn: int
) -> Int[Tensor, "B"]:
    """Which of a node's children has the next draw: in draw order, or where `shuffle` is set any of the draws left, equally
    likely.

    Merged iid copies must come in random order, to the last of them: equal ones together would bias the output. Where
    nothing was merged, the draw order of iid draws is a random order already.
    """
    first = (left > 0).int().argmax(1)
    if not some(shuffle):
        return first
    # As many columns as the largest family of the batch: a pick from few does not feel empty ones behind them.
    return torch.where(shuffle, rnd.pick("order", node, left.double(), shuffle, turn).clamp_min(0), first)


def taken(left: Int[Tensor, "B C"], place: Int[Tensor, "B"]) -> Int[Tensor, "B C"]:
    """One draw of this child less."""
    return left.scatter_add(1, place[:, None], torch.full_like(place, -1)[:, None])


def of(x: Int[Tensor, "B C"], place: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
    """What a table says of one child per row."""
    return x.gather(1, place[:, None])[:, 0]

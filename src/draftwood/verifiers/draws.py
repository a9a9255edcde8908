"""In which order the draws at a node come."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.core.round import Round, some


def order(
    copies: Int[Tensor, "B C"], rnd: Round, node: Int[Tensor, "B"], where: Bool[Tensor, "B"]
) -> Int[Tensor, "B n"]:
    """Which of a node's children each of its draws belongs to: in draw order, or where draws were merged in any order,
    equally likely. n is the greatest number of draws of the batch; what stands behind a sequence's own number has no
    meaning.

    Merged iid copies must come in random order, to the last of them: equal ones together would bias the output. Where
    nothing was merged, the draw order of iid draws is a random order already.
    """
    count, edge = copies.sum(1), copies.cumsum(1)
    turn = torch.arange(int(count.max()) if len(count) else 0, device=copies.device)
    place = torch.searchsorted(edge, turn.expand(len(copies), -1).contiguous(), right=True)
    place = place.clamp_max(copies.shape[1] - 1)
    shuffle = where & merged(copies)
    if not len(turn) or not some(shuffle):
        return place
    # At every turn one of the draws left, by its number among them: how many there are is known beforehand, so all turns
    # ask together.
    left = count[:, None] - turn
    among, asked = turn < left[..., None], shuffle[:, None] & (left > 0)
    number = rnd.pick("order", node[:, None].expand_as(left), among.long(), asked, turn)
    index, found = torch.arange(copies.shape[1], device=copies.device), list[Tensor]()
    for t in range(len(turn)):
        found.append((edge <= number[:, t : t + 1]).sum(1, keepdim=True))
        edge = edge - (index >= found[-1]).long()  # one draw of this child less
    return torch.where(asked, torch.cat(found, dim=1), place)


def merged(copies: Int[Tensor, "B C"]) -> Bool[Tensor, "B"]:
    """Where equal draws share a child and others stand beside it."""
    return (copies > 1).any(1) & ((copies > 0).sum(1) > 1)


def of(x: Int[Tensor, "B C"], place: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
    """The entry of one child of each sequence."""
    return x.gather(1, place[:, None])[:, 0]

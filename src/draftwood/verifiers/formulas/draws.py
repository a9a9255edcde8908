"""How many draws a node can have, in which order they come, and how likely one is kept."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.legal_draws import Draw
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round, some


def most_draws(proposal: Proposal) -> int:
    """No node has more draws below it than this."""
    if proposal.draw is not Draw.IID or proposal.max_children is not None:
        return proposal.siblings
    # Equal draws share a node, so the number of nodes is no bound; a drafter that says one spares this read.
    tree = proposal.tree
    below = torch.zeros_like(tree.copies).scatter_add(
        1, tree.parents.clamp_min(0), torch.where(tree.live, tree.copies, 0)
    )
    return int(below.max()) if tree.batch else 0


def order(
    copies: Int[Tensor, "*S C"],
    rnd: Round,
    node: Int[Tensor, "*S"],
    where: Bool[Tensor, "*S"],
    most: int | None = None,
    merges: bool = True,
) -> Int[Tensor, "*S n"]:
    """Which of a node's children each of its draws belongs to: in draw order, or where draws were merged in any order,
    equally likely. n is the greatest number of draws of the batch, or `most` where the host knows a bound; what stands
    behind a node's own number has no meaning. `merges`: whether draws may have been merged at all.

    Merged iid copies must come in random order, to the last of them: equal ones together would bias the output. Where
    nothing was merged, the draw order of iid draws is a random order already.
    """
    count, edge = copies.sum(-1), copies.cumsum(-1)
    if most is None:
        most = int(count.max()) if len(count) else 0
    turn = torch.arange(most, device=copies.device)
    place = torch.searchsorted(edge, turn.expand(*count.shape, -1).contiguous(), right=True)
    place = place.clamp_max(copies.shape[-1] - 1)
    if most <= 1 or not merges:
        return place
    shuffle = where & merged(copies)
    if not some(shuffle):
        return place
    # At every turn one of the draws left, by its number among them: how many there are is known beforehand, so all turns
    # ask together.
    left = count[..., None] - turn
    among, asked = turn < left[..., None], shuffle[..., None] & (left > 0)
    number = rnd.pick("order", node[..., None].expand_as(left), among.long(), asked, turn)
    index, found = torch.arange(copies.shape[-1], device=copies.device), list[Tensor]()
    for t in range(most):
        found.append((edge <= number[..., t : t + 1]).sum(-1, keepdim=True))
        edge = edge - (index >= found[-1]).long()  # one draw of this child less
    return torch.where(asked, torch.cat(found, dim=-1), place)


def merged(copies: Int[Tensor, "*S C"]) -> Bool[Tensor, "*S"]:
    """Where equal draws share a child and others stand beside it."""
    return (copies > 1).any(-1) & ((copies > 0).sum(-1) > 1)


def of(x: Int[Tensor, "B C"], place: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
    """The entry of one child of each sequence."""
    return x.gather(1, place[:, None])[:, 0]


def ratio(p: Float[Tensor, "*S"], q: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """min(1, p/q) of a drawn token; one that q cannot have drawn is never kept."""
    return torch.where(q > 0, (p / q).clamp_max(1.0), torch.zeros_like(p))

"""What the rules for several draws read at a node: how many draws there are, which law they came from, which comes next."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.proposal import Proposal
from draftwood.core.round import Round, some

_COLUMNS = 27  # different tokens among the draws of one node; more are rare and only lose this one courtesy


def untried(proposal: Proposal, node: Int[Tensor, "B"]) -> Int[Tensor, "B N"]:
    """Draws behind each child of one node per row; given children have none."""
    return torch.where(proposal.tree.children(node), proposal.tree.copies, 0)


def law_at(
    proposal: Proposal, node: Int[Tensor, "B"], where: Bool[Tensor, "B"], like: Float[Tensor, "B V"]
) -> Float[Tensor, "B V"]:
    """q of the children of one node per row, over the columns and in the precision of `like`; zeros elsewhere, and
    everywhere where nothing was drawn."""
    if proposal.q is None:
        return torch.zeros_like(like)
    rows = proposal.rows().gather(1, node[:, None])[:, 0]
    return proposal.q.dense(torch.where(where, rows, -1), like.shape[-1]).to(like.dtype)


def next_draw(
    left: Int[Tensor, "B N"], shuffle: Bool[Tensor, "B"], rnd: Round, node: Int[Tensor, "B"], turn: int
) -> Int[Tensor, "B"]:
    """The child whose draw comes next: in draw order, or where `shuffle` is set any of the draws left, equally likely.

    Merged iid copies must come in random order, to the last of them: equal ones together would bias the output. Where
    nothing was merged, the draw order of iid draws is a random order already.
    """
    first = (left > 0).int().argmax(1)
    if not some(shuffle):
        return first
    # A pick depends on how many columns its law has, and the tree's are as many as the largest row of the batch wants. So
    # the children come to the front, and their number is always the same.
    children = (left == 0).int().sort(dim=1, stable=True).indices
    law = left.gather(1, children).to(torch.float64)
    width = _COLUMNS if int((left > 0).sum(1).max()) <= _COLUMNS else law.shape[1]
    law = torch.nn.functional.pad(law[:, :width], (0, max(width - law.shape[1], 0)))
    place = rnd.pick("order", node, law, shuffle, turn)
    return torch.where(shuffle, children.gather(1, place.clamp_min(0)[:, None])[:, 0], first)


def taken(left: Int[Tensor, "B N"], child: Int[Tensor, "B"]) -> Int[Tensor, "B N"]:
    """One draw of this child less."""
    return left.scatter_add(1, child[:, None], torch.full_like(child, -1)[:, None])

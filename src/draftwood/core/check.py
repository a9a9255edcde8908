"""What a proposal must look like before any rule may see it. Finds the rows that break it; never repairs them."""

import torch
from jaxtyping import Bool
from torch import Tensor

from draftwood.core.host import host
from draftwood.core.proposal import Draw, Proposal
from draftwood.core.round import Round
from draftwood.errors import DrafterError


def faults(proposal: Proposal, rnd: Round, vocab: int) -> dict[int, str]:
    """Row -> what is wrong with its guess. Shapes that fit no row at all raise DrafterError instead."""
    _shapes(proposal, rnd)
    tree = proposal.tree
    index = torch.arange(tree.num_nodes, device=tree.tokens.device)
    below = tree.live & (index > 0)
    drawn = below & (tree.copies > 0)
    parent = tree.parents.clamp(0, max(tree.num_nodes - 1, 0))
    rows = proposal.rows()
    bad: dict[str, Bool[Tensor, "B"]] = {
        "the root is not the newest token": (tree.tokens[:, 0] != rnd.roots()) | ~tree.live[:, 0],
        "a token id is out of range": (below & ((tree.tokens < 0) | (tree.tokens >= vocab))).any(1),
        "a parent does not stand before its child": (below & ((tree.parents < 0) | (tree.parents >= index))).any(1),
        "a live node hangs below a dead one": (below & ~tree.live.gather(1, parent)).any(1),
        "two siblings carry the same token": _twins(tree.tokens, parent, below),
        "a drawn node has no law": (drawn & (rows.gather(1, parent) < 0)).any(1),
        "drawn nodes in a proposal that draws none": drawn.any(1) & (proposal.draw is Draw.GIVEN),
        "a score is not a number": (below & tree.score.isnan()).any(1),
    }
    if proposal.q is not None and proposal.q.num_rows:
        total = proposal.q.prob.sum(1)
        wrong = ~(proposal.q.prob >= 0).all(1) | ~((total - 1).abs() < 1e-3)
        law = rows.gather(1, parent).clamp_min(0)
        bad["a draft law is not a probability"] = (drawn & wrong[law]).any(1)
    found: dict[int, str] = {}
    if bool(torch.stack(list(bad.values())).any()):
        for reason, mask in bad.items():
            for b in host(mask.nonzero()[:, 0]):
                found.setdefault(b, reason)
    return found


def _shapes(proposal: Proposal, rnd: Round) -> None:
    tree = proposal.tree
    want = (rnd.batch, tree.tokens.shape[-1])
    for name in ("tokens", "parents", "live", "role", "copies", "score", "source"):
        shape = tuple(getattr(tree, name).shape)
        if shape != want:
            raise DrafterError(f"tree.{name} has shape {shape}, expected {want}")
    if tuple(proposal.rows().shape) != want:
        raise DrafterError(f"q_row has shape {tuple(proposal.rows().shape)}, expected {want}")
    highest = int(proposal.rows().max()) if proposal.rows().numel() else -1
    stored = 0 if proposal.q is None else proposal.q.num_rows
    if highest >= stored:
        raise DrafterError(f"q_row names law {highest}, only {stored} are stored")


def _twins(tokens: Tensor, parent: Tensor, below: Bool[Tensor, "B N"]) -> Bool[Tensor, "B"]:
    """Equal (parent, token) pairs among live nodes, by sorting one key per node."""
    key = torch.where(
        below, parent * (tokens.max() + 2) + tokens + 1, -1 - torch.arange(below.shape[1], device=parent.device)
    )
    order = key.sort(1).values
    return (order[:, 1:] == order[:, :-1]).any(1)

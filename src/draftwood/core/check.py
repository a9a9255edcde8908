"""What a proposal must look like before any rule may see it. Finds the rows that break it; never repairs them."""

import torch
from jaxtyping import Bool
from torch import Tensor

from draftwood.core.host import host
from draftwood.core.proposal import Draw, Proposal
from draftwood.core.round import Round
from draftwood.errors import DrafterError

BAD_LAW = "a draft law is not a probability"
_COPIES = {Draw.GIVEN: 0, Draw.DISTINCT: 1, Draw.IID: 4096}


def faults(proposal: Proposal, rnd: Round, vocab: int) -> dict[int, str]:
    """Row -> what is wrong with its guess. Shapes that fit no row at all raise DrafterError instead."""
    _shapes(proposal, rnd, vocab)
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
        "the root has a parent": tree.parents[:, 0] != -1,
        "a count of copies is absurd": ((tree.copies < 0) | (tree.copies > _COPIES[proposal.draw])).any(1),
        "a score is not a number": (below & tree.score.isnan()).any(1),
    }
    bad[BAD_LAW] = (drawn & ~lawful(proposal)).any(1)
    found: dict[int, str] = {}
    if bool(torch.stack(list(bad.values())).any()):
        for reason, mask in bad.items():
            for b in host(mask.nonzero()[:, 0]):
                found.setdefault(b, reason)
    return found


def lawful(proposal: Proposal) -> Bool[Tensor, "B N"]:
    """Nodes that were given, or drawn from a law that is a probability. The law was known before the draw, so cutting the
    others cannot bias; dropping the whole row because of them would."""
    tree, q = proposal.tree, proposal.q
    if q is None or not q.num_rows:
        return torch.ones_like(tree.live)
    wrong = ~(q.prob >= 0).all(1) | ~((q.prob.sum(1) - 1).abs() < 1e-3)
    parent = tree.parents.clamp(0, max(tree.num_nodes - 1, 0))
    law = proposal.rows().gather(1, parent)
    return (tree.copies == 0) | (law < 0) | ~wrong[law.clamp_min(0)]


def _shapes(proposal: Proposal, rnd: Round, vocab: int) -> None:
    tree = proposal.tree
    want = (rnd.batch, tree.tokens.shape[-1])
    for name in ("tokens", "parents", "live", "role", "copies", "score", "source"):
        shape = tuple(getattr(tree, name).shape)
        if shape != want:
            raise DrafterError(f"tree.{name} has shape {shape}, expected {want}")
    for name in ("tokens", "parents", "role", "copies", "source"):
        if getattr(tree, name).dtype != torch.int64:
            raise DrafterError(f"tree.{name} is {getattr(tree, name).dtype}, expected torch.int64")
    _laws(proposal, vocab)
    if tuple(proposal.rows().shape) != want:
        raise DrafterError(f"q_row has shape {tuple(proposal.rows().shape)}, expected {want}")
    highest = int(proposal.rows().max()) if proposal.rows().numel() else -1
    stored = 0 if proposal.q is None else proposal.q.num_rows
    if highest >= stored:
        raise DrafterError(f"q_row names law {highest}, only {stored} are stored")


def _laws(proposal: Proposal, vocab: int) -> None:
    """Laws over the target's own tokens."""
    q = proposal.q
    if q is None:
        return
    if q.ids is None and q.prob.shape[1] != vocab:
        raise DrafterError(f"a draft law has {q.prob.shape[1]} columns, the target {vocab} tokens")
    if q.ids is not None:
        fits = q.ids.shape[-1] == q.prob.shape[1] and (q.ids.ndim == 1 or len(q.ids) == q.num_rows)
        if not fits or bool(((q.ids < 0) | (q.ids >= vocab)).any()):
            raise DrafterError(f"the columns of a draft law name tokens outside the target's {vocab}")


def _twins(tokens: Tensor, parent: Tensor, below: Bool[Tensor, "B N"]) -> Bool[Tensor, "B"]:
    """Equal (parent, token) pairs among live nodes, by sorting one key per node."""
    key = torch.where(
        below, parent * (tokens.max() + 2) + tokens + 1, -1 - torch.arange(below.shape[1], device=parent.device)
    )
    order = key.sort(1).values
    return (order[:, 1:] == order[:, :-1]).any(1)

"""What a proposal must look like before a rule may see it. Finds the sequences that break it; never repairs them."""

import torch
from jaxtyping import Bool
from torch import Tensor

from draftwood.core.host import host
from draftwood.core.legal_draws import Draw
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.tree import AHEAD
from draftwood.errors import DrafterError

BAD_PROBS = "a draft distribution is not a probability"
_SUM = 1e-5  # a float32 softmax is ten times nearer to one; what is farther off biases the output by a third of it
_COPIES = {Draw.GIVEN: 0, Draw.DISTINCT: 1, Draw.IID: 4096}


def faults(proposal: Proposal, rnd: Round, vocab_size: int) -> dict[int, str]:
    """Sequence -> what is wrong with its draft. Shapes that fit no sequence raise DrafterError instead."""
    _shapes(proposal, rnd, vocab_size)
    tree = proposal.tree
    columns: list[list[list[int]]] = host(
        torch.stack([tree.tokens, tree.parents, tree.live.long(), tree.role, tree.copies, proposal.q_indices()])
    )
    found: dict[int, str] = {}
    for b, (tokens, parents, live, role, copies, distributions) in enumerate(zip(*columns, strict=True)):
        reason = _fault(
            tokens, parents, live, role, copies, distributions, rnd.requests[b].root, vocab_size, _COPIES[proposal.draw]
        )
        if reason is not None:
            found[b] = reason
    _mark(found, "a score is not a number", tree.live & tree.score.isnan())
    if proposal.q is not None and proposal.q.num_distributions:
        below = tree.live & (tree.copies > 0)
        below[:, 0] = False
        _mark(found, BAD_PROBS, below & ~is_valid(proposal))
    return found


def _fault(
    tokens: list[int],
    parents: list[int],
    live: list[int],
    role: list[int],
    copies: list[int],
    distributions: list[int],
    root: int,
    vocab_size: int,
    most: int,
) -> str | None:
    """The first thing that is wrong with one tree."""
    if tokens[0] != root or not live[0]:
        return "the root is not the newest token"
    if parents[0] != -1:
        return "the root has a parent"
    if min(copies) < 0 or max(copies) > most:
        return "a count of copies is absurd"
    children: set[tuple[int, int]] = set()
    for i in range(1, len(tokens)):
        if not live[i]:
            continue
        parent, token = parents[i], tokens[i]
        if not 0 <= token < vocab_size:
            return "a token id is out of range"
        if not 0 <= parent < i:
            return "a parent does not stand before its child"
        if not live[parent]:
            return "a live node hangs below a dead one"
        if role[parent] == AHEAD and role[i] != AHEAD:
            return "a node of this pass hangs below one of the next"
        if (parent, token) in children:
            return "two siblings carry the same token"
        if copies[i] and distributions[parent] < 0:
            return "a drawn node has no distribution"
        children.add((parent, token))
    return None


def _mark(found: dict[int, str], reason: str, mask: Bool[Tensor, "B N"]) -> None:
    if bool(mask.any()):
        for b in host(mask.any(1).nonzero()[:, 0]):
            found.setdefault(b, reason)


def is_valid(proposal: Proposal) -> Bool[Tensor, "B N"]:
    """Nodes that were given, or drawn from a distribution that is a probability. The distribution was known before the draw,
    so cutting the others cannot bias the output; dropping the whole sequence because of them would."""
    tree, q = proposal.tree, proposal.q
    if q is None or not q.num_distributions:
        return torch.ones_like(tree.live)
    wrong = ~(q.prob >= 0).all(1) | ~((q.prob.sum(1) - 1).abs() < _SUM)
    parent = tree.parents.clamp(0, max(tree.num_nodes - 1, 0))
    probs = proposal.q_indices().gather(1, parent)
    return (tree.copies == 0) | (probs < 0) | ~wrong[probs.clamp_min(0)]


def _shapes(proposal: Proposal, rnd: Round, vocab_size: int) -> None:
    tree = proposal.tree
    want = (rnd.batch, tree.tokens.shape[-1])
    for name in ("tokens", "parents", "live", "role", "copies", "score", "source"):
        shape = tuple(getattr(tree, name).shape)
        if shape != want:
            raise DrafterError(f"tree.{name} has shape {shape}, expected {want}")
    for name in ("tokens", "parents", "role", "copies", "source"):
        if getattr(tree, name).dtype != torch.int64:
            raise DrafterError(f"tree.{name} is {getattr(tree, name).dtype}, expected torch.int64")
    if tree.live.dtype != torch.bool or not tree.score.is_floating_point():
        raise DrafterError(
            f"tree.live is {tree.live.dtype} and tree.score {tree.score.dtype}, expected bool and floats"
        )
    for name, kind in (("passes", int), ("pass_seconds", int | float)):
        if not isinstance(getattr(proposal, name), kind):
            raise DrafterError(f"{name} cannot be {getattr(proposal, name)!r}, a number is expected")
    _distributions(proposal, vocab_size)
    if proposal.q_index is None:
        return
    if tuple(proposal.q_index.shape) != want:
        raise DrafterError(f"q_index has shape {tuple(proposal.q_index.shape)}, expected {want}")
    highest = int(proposal.q_index.max()) if proposal.q_index.numel() else -1
    stored = 0 if proposal.q is None else proposal.q.num_distributions
    if highest >= stored:
        raise DrafterError(f"q_index names distribution {highest}, only {stored} are stored")


def _distributions(proposal: Proposal, vocab_size: int) -> None:
    """Distributions over the target's own tokens."""
    q = proposal.q
    if q is None:
        return
    if q.ids is None and q.prob.shape[1] != vocab_size:
        raise DrafterError(f"a draft distribution has {q.prob.shape[1]} columns, the target {vocab_size} tokens")
    if q.ids is not None:
        fits = q.ids.shape[-1] == q.prob.shape[1] and (q.ids.ndim == 1 or len(q.ids) == q.num_distributions)
        if not fits or bool(((q.ids < 0) | (q.ids >= vocab_size)).any()):
            raise DrafterError(f"the columns of a draft distribution name tokens outside the target's {vocab_size}")

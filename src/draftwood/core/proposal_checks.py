"""What a proposal must look like before a rule may see it. Finds the sequences that break it; never repairs them.

In two forms with the same result: `faults` works on lists, which is faster on a CPU; `fault_codes` works on tensors, without
a host read. Both give the first reason that holds, in the order of REASONS; reasons about nodes are tested node by node.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from draftwood.core import host as hosts
from draftwood.core.host import host
from draftwood.core.legal_draws import Draw
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import AHEAD, PROBE, TokenTree
from draftwood.errors import DrafterError

REASONS = (
    "",
    _FOREIGN := "a draft distribution names a token outside the target's vocabulary",
    _NOT_STORED := "a node names a distribution that is not stored",
    _NO_INPUT := "a node names an input of its own that is not stored, or not a number",
    _NO_PROBE := "a node with an input of its own is no probe",
    _ROOT_TOKEN := "the root is not the newest token",
    _ROOT_PARENT := "the root has a parent",
    _COPIES := "a count of copies is absurd",
    # of each node
    _TOKEN := "a token id is out of range",
    _ORDER := "a parent does not stand before its child",
    _DEAD_PARENT := "a live node hangs below a dead one",
    _AHEAD_PARENT := "a node of this pass hangs below one of the next",
    _SAME_TOKEN := "two siblings carry the same token",
    _NO_PROBS := "a drawn node has no distribution",
    # of the whole tree again
    _SCORE := "a score is not a number",
    BAD_PROBS := "a draft distribution is not a probability",
    NOT_AHEAD := "a tree in flight was changed, or got nodes that are not for the next round",
    "more nodes than the limit allows",
)
"""By code; 0 is no fault."""
OVER_BUDGET = len(REASONS) - 1
"""The code of the last reason, which only the engine can test: after selection."""

_SUM = (
    1e-4  # float32 softmaxes of 49,152 tokens were up to 1.3e-5 off; what is farther off biases the output by a third
)
_MAX_COPIES = {Draw.GIVEN: 0, Draw.DISTINCT: 1, Draw.IID: 4096}


def faults(proposal: Proposal, rnd: Round, vocab_size: int, in_flight: TokenTree | None = None) -> dict[int, str]:
    """Sequence -> what is wrong with its draft. Shapes that fit no sequence raise DrafterError.
    `in_flight`: the trees that the target is scoring; the proposal may only add AHEAD nodes to them."""
    _check_shapes(proposal, rnd.batch, vocab_size)
    tree, q = proposal.tree, proposal.q
    if q is not None and q.ids is not None and bool(_foreign(q.ids, vocab_size).any()):
        return dict.fromkeys(range(rnd.batch), _FOREIGN)
    none = [[-1] * tree.num_nodes] * rnd.batch
    columns = [host(each) for each in (tree.tokens, tree.parents, tree.live, tree.role, tree.copies)]
    columns.append(none if proposal.q_index is None else host(proposal.q_index))
    columns.append(none if proposal.inputs is None else host(proposal.inputs.index))
    sizes = 0 if q is None else q.num_distributions, _MAX_COPIES[proposal.draw], vocab_size
    usable = None if proposal.inputs is None else host(proposal.inputs.vectors.isfinite().all(1))
    found: dict[int, str] = {}
    for b, own in enumerate(zip(*columns, strict=True)):
        if reason := _fault(own, rnd.requests[b].root, *sizes, usable):
            found[b] = reason
    for b, (score, live) in enumerate(zip(host(tree.score), columns[2], strict=True)):
        if any(on and rank != rank for rank, on in zip(score, live, strict=True)):  # only NaN differs from itself
            found.setdefault(b, _SCORE)
    if q is not None:
        _mark(found, BAD_PROBS, tree.live & ~is_valid(proposal))
    if in_flight is not None:
        _mark(found, NOT_AHEAD, not_ahead(tree, in_flight)[:, None])
    return found


def _fault(
    columns: tuple[list[int], ...],
    root: int,
    num_probs: int,
    max_copies: int,
    vocab_size: int,
    usable: list[bool] | None,
) -> str:
    """The first thing that is wrong with one tree. `usable`: which vectors are numbers, where nodes have some."""
    tokens, parents, live, role, copies, distributions, inputs = columns
    if max(distributions) >= num_probs:
        return _NOT_STORED
    if usable is not None:
        used = [(i, kind) for i, kind, on in zip(inputs, role, live, strict=True) if on and i >= 0]
        if any(i >= len(usable) or not usable[i] for i, _ in used):
            return _NO_INPUT
        if any(kind != PROBE for _, kind in used):
            return _NO_PROBE
    if tokens[0] != root or not live[0]:
        return _ROOT_TOKEN
    if parents[0] != -1:
        return _ROOT_PARENT
    if min(copies) < 0 or max(copies) > max_copies:
        return _COPIES
    children: set[tuple[int, int]] = set()
    for i in range(1, len(tokens)):
        if not live[i]:
            continue
        parent, token = parents[i], tokens[i]
        if not 0 <= token < vocab_size:
            return _TOKEN
        if not 0 <= parent < i:
            return _ORDER
        if not live[parent]:
            return _DEAD_PARENT
        if role[parent] == AHEAD and role[i] != AHEAD:
            return _AHEAD_PARENT
        if (parent, token) in children and inputs[i] < 0:
            return _SAME_TOKEN
        if copies[i] and distributions[parent] < 0:
            return _NO_PROBS
        if inputs[i] < 0:
            children.add((parent, token))
    return ""


def _mark(found: dict[int, str], reason: str, mask: Bool[Tensor, "B N"]) -> None:
    if bool(mask.any()):
        for b in host(mask.any(1).nonzero()[:, 0]):
            found.setdefault(b, reason)


def fault_codes(
    proposal: Proposal, roots: Int[Tensor, "B"], vocab_size: int, in_flight: TokenTree | None = None
) -> Int[Tensor, "B"]:
    """What is wrong with each sequence's draft, as a number of REASONS: `faults` without a host read. Called before anything
    is gathered by the numbers of a tree, because an index out of range stops an accelerator for good; then
    `without_faults`."""
    _check_shapes(proposal, len(roots), vocab_size)
    tree, q, q_index = proposal.tree, proposal.q, proposal.q_indices()
    copies, live, nodes = tree.copies, tree.live, tree.num_nodes
    index = torch.arange(nodes, device=roots.device)
    below = live & (index > 0)
    above = tree.parents.clamp(0, nodes - 1)
    none = torch.zeros_like(live[:, 0])
    own, strange = _own_inputs(proposal)
    first = [
        none if q is None or q.ids is None else _foreign(q.ids, vocab_size).any().expand_as(none),
        (q_index >= (0 if q is None else q.num_distributions)).any(1),
        none if strange is None else strange.any(1),
        none if own is None else (own & (tree.role != PROBE)).any(1),
        (tree.tokens[:, 0] != roots) | ~live[:, 0],
        tree.parents[:, 0] != -1,
        ((copies < 0) | (copies > _MAX_COPIES[proposal.draw])).any(1),
    ]
    each = [
        _foreign(tree.tokens, vocab_size),
        (tree.parents < 0) | (tree.parents >= index),
        ~live.gather(1, above),
        (tree.role.gather(1, above) == AHEAD) & (tree.role != AHEAD),
        _repeated(torch.where(below if own is None else below & ~own, above * vocab_size + tree.tokens, -1 - index)),
        (copies != 0) & (q_index.gather(1, above) < 0),
    ]
    last = [
        (live & tree.score.isnan()).any(1),
        none if q is None else (live & ~is_valid(proposal)).any(1),
        none if in_flight is None else not_ahead(tree, in_flight),
    ]
    by_node = torch.stack(each, dim=-1) & below[..., None]  # [B, N, checks]
    found, place = torch.cat([torch.stack(first, dim=1), by_node.flatten(1)], dim=1).byte().max(dim=1)
    late, behind = torch.stack(last, dim=1).byte().max(dim=1)
    code = torch.where(place < len(first), place, len(first) + (place - len(first)) % len(each))
    return torch.where(found > 0, 1 + code, torch.where(late > 0, 1 + len(first) + len(each) + behind, 0))


def _own_inputs(proposal: Proposal) -> tuple[Bool[Tensor, "B N"] | None, Bool[Tensor, "B N"] | None]:
    """Live nodes with an input of their own, and those of them whose input is not stored or not a number."""
    inputs = proposal.inputs
    if inputs is None:
        return None, None
    own, last = proposal.tree.live & (inputs.index >= 0), len(inputs.vectors) - 1
    if last < 0:
        return own, own
    wrong = ~inputs.vectors.isfinite().all(1)
    return own, own & ((inputs.index > last) | wrong[inputs.index.clamp(0, last)])


def _repeated(key: Int[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """Nodes whose key an earlier one has. By sorting, because comparing all pairs takes N x N numbers."""
    ordered, order = key.sort(dim=1, stable=True)
    return torch.zeros_like(key, dtype=torch.bool).scatter(1, order[:, 1:], ordered[:, 1:] == ordered[:, :-1])


def without_faults(proposal: Proposal, codes: Int[Tensor, "B"], roots: Int[Tensor, "B"], vocab_size: int) -> Proposal:
    """Bare roots where something is wrong, and all numbers in range, those of dead nodes too, so that gathers need no check.
    A bad distribution costs only the nodes drawn from it, which was decided before they were drawn."""
    tree, q = proposal.tree, proposal.q
    bare = ((codes != 0) & (codes != REASONS.index(BAD_PROBS)))[:, None]
    root = (torch.arange(tree.num_nodes, device=roots.device) == 0).expand_as(tree.live)
    live = torch.where(bare, root, tree.live)
    used = live & ~root
    fixed = replace(
        tree,
        tokens=torch.where(used, tree.tokens, roots[:, None]),
        parents=torch.where(root, -1, torch.where(used, tree.parents, 0)),
        copies=torch.where(used, tree.copies, 0),
        score=torch.where(bare, 0.0, tree.score),
        live=live,
    )
    if q is not None and q.ids is not None:
        q = DraftProbs(q.prob, q.ids.clamp(0, vocab_size - 1))
    inputs = proposal.inputs
    if inputs is not None:
        inputs = replace(inputs, index=torch.where(used, inputs.index.clamp_max(len(inputs.vectors) - 1), -1))
    q_index = torch.where(bare | ~live, -1, proposal.q_indices())
    clean = replace(proposal, tree=fixed, q=q, q_index=q_index, inputs=inputs)
    return clean.keep(is_valid(clean))


def is_valid(proposal: Proposal) -> Bool[Tensor, "B N"]:
    """Nodes that were given, or drawn from a distribution that is a probability. The distribution was known before the draw,
    so cutting the others cannot bias the output; dropping the whole sequence because of them would."""
    tree, q = proposal.tree, proposal.q
    if q is None or not q.num_distributions:
        return torch.ones_like(tree.live)
    wrong = ~_are_probabilities(q.prob)
    parent = tree.parents.clamp(0, max(tree.num_nodes - 1, 0))
    probs = proposal.q_indices().gather(1, parent)
    return (tree.copies == 0) | (probs < 0) | ~wrong[probs.clamp(0, q.num_distributions - 1)]


def _are_probabilities(prob: Float[Tensor, "R W"]) -> Bool[Tensor, "R"]:
    """Which distributions have no negative number, no NaN, and the sum one. On a CPU by numpy: torch would wake its threads
    for a few thousand numbers, which beside a busy process takes longer than a draft."""
    if hosts.on_host(prob.device):
        values: NDArray[Any] = prob.detach().numpy()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        good = (values >= 0).all(1) & (np.abs(values.sum(1) - 1) < _SUM)
        return torch.from_numpy(good)  # pyright: ignore[reportUnknownMemberType]
    return (prob >= 0).all(1) & ((prob.sum(1) - 1).abs() < _SUM)


def not_ahead(grown: TokenTree, base: TokenTree) -> Bool[Tensor, "B"]:
    """Sequences whose tree in flight is no longer what the target is scoring, or has new nodes that are not AHEAD."""
    first = base.num_nodes
    if grown.num_nodes < first:
        raise DrafterError(f"a tree of {first} nodes is in flight, {grown.num_nodes} came back")
    other = (grown.live[:, :first] != base.live).any(1)
    for name in ("tokens", "parents", "role"):
        other = other | ((getattr(grown, name)[:, :first] != getattr(base, name)) & base.live).any(1)
    return other | (grown.live & (grown.role != AHEAD))[:, first:].any(1)


def _check_shapes(proposal: Proposal, batch: int, vocab_size: int) -> None:
    """What is known without a host read."""
    tree, q = proposal.tree, proposal.q
    want = (batch, tree.tokens.shape[-1])
    for name in tree.__slots__:
        column = getattr(tree, name)
        if tuple(column.shape) != want:
            raise DrafterError(f"tree.{name} has shape {tuple(column.shape)}, expected {want}")
        kind = torch.bool if name == "live" else torch.int64
        if not (column.is_floating_point() if name == "score" else column.dtype == kind):
            raise DrafterError(f"tree.{name} is {column.dtype}, expected {'floats' if name == 'score' else kind}")
    for name, kind in (("passes", int), ("pass_seconds", int | float)):
        if not isinstance(getattr(proposal, name), kind):
            raise DrafterError(f"{name} cannot be {getattr(proposal, name)!r}, a number is expected")
    if proposal.q_index is not None and tuple(proposal.q_index.shape) != want:
        raise DrafterError(f"q_index has shape {tuple(proposal.q_index.shape)}, expected {want}")
    inputs = proposal.inputs
    if inputs is not None and (tuple(inputs.index.shape) != want or inputs.index.dtype != torch.int64):
        raise DrafterError(f"inputs.index is {inputs.index.dtype} {tuple(inputs.index.shape)}, expected int64 {want}")
    if q is None:
        return
    if q.ids is None and q.prob.shape[1] != vocab_size:
        raise DrafterError(f"a draft distribution has {q.prob.shape[1]} columns, the target {vocab_size} tokens")
    if q.ids is not None and tuple(q.ids.shape) not in {(q.prob.shape[1],), tuple(q.prob.shape)}:
        raise DrafterError(f"distributions of shape {tuple(q.prob.shape)} name tokens {tuple(q.ids.shape)}")


def _foreign(ids: Int[Tensor, "..."], vocab_size: int) -> Bool[Tensor, "..."]:
    return (ids < 0) | (ids >= vocab_size)

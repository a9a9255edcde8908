"""What a drafter proposed, checked, cut to the budget and without gaps, on an accelerator: without a host read, in one
function of tensors, which a runner captures once for each size. Also whether the pass can use what the drafter has started.
"""

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core import host as hosts
from draftwood.core import node_budget
from draftwood.core.host import host
from draftwood.core.limit import Limit
from draftwood.core.proposal import Inputs, Proposal
from draftwood.core.proposal_checks import OVER_BUDGET, fault_codes, without_faults
from draftwood.core.protocols import TreePolicy
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import AHEAD, TokenTree
from draftwood.errors import DrafterError

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine

_COLUMNS = tuple(field.name for field in fields(TokenTree))


def select_on_device(
    e: "Engine", policy: TreePolicy, proposal: Proposal, roots: Int[Tensor, "B"], limit: Limit
) -> tuple[Proposal, Int[Tensor, "B"]]:
    """The part of a proposal that the target will score, and the fault of each draft, to be read with the verdict."""
    q, started, vocab_size = proposal.q, proposal.started, e.info.vocab_size
    in_place = started is not None  # nodes stay in the columns of their staged entries
    inputs, size = proposal.inputs, len(_COLUMNS)
    stored = [] if q is None else [q.prob] if q.ids is None else [q.prob, q.ids]
    competing = limit.competing
    entering = [] if inputs is None else [inputs.vectors, inputs.index]

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        q_index, first, depth, nodes, *rest = given[size:]
        scales, rest = rest[: len(competing)], rest[len(competing) :]
        probs, vectors = rest[: len(stored)], rest[len(stored) :]
        own = replace(
            proposal,
            tree=TokenTree(*given[:size]),
            q=DraftProbs(*probs) if probs else None,
            q_index=q_index,
            started=None,
            inputs=Inputs(*vectors) if vectors else None,
        )
        return _selected(own, first, limit.with_tensors(depth, nodes, *scales), policy, vocab_size, in_place)

    emits = None if limit.price is None else limit.price.tokens
    shared = (limit.total, limit.budgets, emits, limit.correction is None) if limit.shared else None
    sizes = len(stored), len(entering)
    key = (
        "select",
        policy is e.recipe.policy,
        in_place,
        proposal.draw,
        proposal.max_depth,
        proposal.max_children,
        limit.tier,
        shared,
        sizes,
    )
    given = [
        *(getattr(proposal.tree, name) for name in _COLUMNS),
        proposal.q_indices(),
        roots,
        limit.depth,
        limit.nodes,
        *competing,
    ]
    found = e.runner.captured(key, run, *given, *stored, *entering)
    tree, (q_index, depths, faults, *more) = TokenTree(*found[:size]), found[size:]
    kept = DraftProbs(q.prob, more[0]) if q is not None and q.ids is not None else q
    inputs = None if inputs is None else Inputs(inputs.vectors, more[-1])
    if started is not None:  # dead nodes are in the pass too; NaN times zero is NaN, so their hidden states become zero
        started = replace(started, hidden=torch.where(tree.live[..., None], started.hidden, 0))
    chosen = replace(proposal, tree=tree, q=kept, q_index=q_index, depths=depths, started=started, inputs=inputs)
    return chosen, faults


def _selected(
    proposal: Proposal, roots: Int[Tensor, "B"], limit: Limit, policy: TreePolicy, vocab_size: int, in_place: bool
) -> tuple[Tensor, ...]:
    """Columns of the tree, distributions of its nodes, their depths, faults, tokens of the distributions, and inputs of the
    nodes: the last two where there are some."""
    wrong = fault_codes(proposal, roots, vocab_size)
    proposal = without_faults(proposal, wrong, roots, vocab_size)
    proposal = proposal.keep(node_budget.selected(policy, proposal.tree, limit))
    if not in_place:
        proposal = proposal.compact(min(limit.tier.nodes, proposal.tree.num_nodes))
    tree = proposal.tree
    over = tree.num_in_pass() > limit.nodes  # entries are reserved for so many nodes and no more
    proposal = proposal.keep(~over[:, None] | (torch.arange(tree.num_nodes, device=roots.device) == 0))
    wrong = torch.where(over & (wrong == 0), OVER_BUDGET, wrong)
    ids = [] if proposal.q is None or proposal.q.ids is None else [proposal.q.ids]
    inputs = [] if proposal.inputs is None else [proposal.inputs.index]
    columns = [getattr(proposal.tree, name) for name in _COLUMNS]
    return *columns, proposal.q_indices(), proposal.tree.depths(proposal.levels), wrong, *ids, *inputs


def check_inputs(e: "Engine", proposal: Proposal) -> None:
    """DrafterError if vectors that enter at probes do not fit the target, or stand beside layers that are run already."""
    assert proposal.inputs is not None
    shape, width = tuple(proposal.inputs.vectors.shape), e.info.hidden_size
    if len(shape) != 2 or shape[1] != width:
        raise DrafterError(f"inputs of shape {shape}, those of the target are {width} wide")
    if proposal.started is not None:
        raise DrafterError("a proposal whose layers are started has inputs, which no layer would read")


def with_usable_start(e: "Engine", part: Round, proposal: Proposal) -> Proposal:
    """The proposal, without its started layers where the pass has to run them again: the draft broke off before all nodes
    were run; or, where entries cannot be read, they are not the nodes' numbers or exceed a slot. DrafterError if what was
    started does not fit the proposal."""
    started, tree, info = proposal.started, proposal.tree, e.info
    assert started is not None
    shape, want = tuple(started.hidden.shape), (*tree.tokens.shape, info.hidden_size)
    if not e.needs.borrow or shape != want or not 0 < started.layers <= info.num_layers:
        raise DrafterError(
            f"hidden states of shape {shape} after {started.layers} layers, expected {want} after 1 to {info.num_layers}, "
            "from a drafter that borrows the target"
        )
    room = [e.runner.capacity - e.runner.length(slot) for slot in part.host_slots]
    usable = proposal.fault is None
    if hosts.on_host(e.device):
        _check_entries(proposal, room)
    else:
        usable = usable and started.entries is None and tree.num_nodes <= min(room)
    return proposal if usable else replace(proposal, started=None)


def _check_entries(proposal: Proposal, room: list[int]) -> None:
    """DrafterError unless every node has an entry of its own inside its slot, the root the first."""
    started, tree = proposal.started, proposal.tree
    assert started is not None
    numbers = [list(range(tree.num_nodes))] * tree.batch
    entries: list[list[int]] = numbers if started.entries is None else host(started.entries)
    inside: list[list[bool]] = host(tree.live & (tree.role != AHEAD))
    for own, nodes, most in zip(entries, inside, room, strict=True):
        used = [entry for entry, on in zip(own, nodes, strict=True) if on]
        if used[:1] != [0] or len(set(used)) < len(used) or min(used) < 0 or max(used) >= most:
            raise DrafterError(f"nodes are started at entries {used}, expected 0 first and others below {most}")

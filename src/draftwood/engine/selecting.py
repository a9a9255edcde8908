"""What a drafter proposed, checked, cut to the budget and without gaps, where nobody may look at it: all of it in one
function of tensors, which a runner captures once for each size."""

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.limit import Limit
from draftwood.core.node_budget import selected
from draftwood.core.proposal import Proposal
from draftwood.core.proposal_checks import OVER_BUDGET, fault_codes, without_faults
from draftwood.core.protocols import TreePolicy
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine

_NAMES = tuple(field.name for field in fields(TokenTree))


def select_unread(
    e: "Engine", proposal: Proposal, roots: Int[Tensor, "B"], limit: Limit
) -> tuple[Proposal, Int[Tensor, "B"]]:
    """The part of a proposal that the target will score, and what is wrong with each draft, to be read with the verdict."""
    q, vocab_size, policy = proposal.q, e.info.vocab_size, e.recipe.policy
    stored = [] if q is None else [q.prob] if q.ids is None else [q.prob, q.ids]

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        tree, rest = TokenTree(**dict(zip(_NAMES, given, strict=False))), given[len(_NAMES) :]
        q_index, first, depth, nodes, *probs = rest
        draft = DraftProbs(*probs) if probs else None
        own = replace(proposal, tree=tree, q=draft, q_index=q_index, started=None)
        return _selected(own, first, limit.with_tensors(depth, nodes), policy, vocab_size, in_place)

    started = proposal.started
    in_place = started is not None  # nodes stand where they are staged
    shared = None if limit.total is None else (limit.total, limit.budgets)
    key = ("select", in_place, proposal.draw, proposal.max_depth, proposal.max_children, limit.tier, shared)
    columns = [*(getattr(proposal.tree, name) for name in _NAMES), proposal.q_indices()]
    found = e.runner.captured(key, run, *columns, roots, limit.depth, limit.nodes, *stored)
    tree, (q_index, depths, faults, *ids) = TokenTree(**dict(zip(_NAMES, found, strict=False))), found[len(_NAMES) :]
    kept = DraftProbs(q.prob, ids[0]) if q is not None and ids else q
    if started is not None:  # dead nodes ride too, and nothing times not-a-number is not nothing
        started = replace(started, hidden=torch.where(tree.live[..., None], started.hidden, 0))
    return replace(proposal, tree=tree, q=kept, q_index=q_index, depths=depths, started=started), faults


def _selected(
    proposal: Proposal, roots: Int[Tensor, "B"], limit: Limit, policy: TreePolicy, vocab_size: int, in_place: bool
) -> tuple[Tensor, ...]:
    """Columns of the tree, distributions of its nodes, their depths, faults, and tokens of the distributions."""
    wrong = fault_codes(proposal, roots, vocab_size)
    proposal = without_faults(proposal, wrong, roots, vocab_size)
    proposal = proposal.keep(selected(policy, proposal.tree, limit))
    if not in_place:
        proposal = proposal.compact(min(limit.tier.nodes, proposal.tree.num_nodes))
    tree = proposal.tree
    over = tree.num_drafted() > limit.nodes  # entries are reserved for so many nodes and no more
    proposal = proposal.keep(~over[:, None] | (torch.arange(tree.num_nodes, device=roots.device) == 0))
    wrong = torch.where(over & (wrong == 0), OVER_BUDGET, wrong)
    ids = [] if proposal.q is None or proposal.q.ids is None else [proposal.q.ids]
    columns = [getattr(proposal.tree, name) for name in _NAMES]
    return *columns, proposal.q_indices(), proposal.tree.depths(proposal.levels), wrong, *ids

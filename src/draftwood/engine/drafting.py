"""Controller and drafter in a round: how much to draft, a proposal, its check, and the report of the outcome to both.

A controller that raises, and a drafter that raises or returns an invalid proposal, is disabled: the requests concerned go on
without drafts.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core import host as hosts
from draftwood.core import node_budget
from draftwood.core.forward import ForwardOutput
from draftwood.core.host import host, put
from draftwood.core.limit import Limit, Load
from draftwood.core.proposal import Proposal
from draftwood.core.proposal_checks import BAD_PROBS, REASONS, faults, is_valid
from draftwood.core.protocols import TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome, Times
from draftwood.engine.selecting import check_inputs, select_on_device, with_usable_start
from draftwood.errors import DrafterError

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine

log = logging.getLogger("draftwood")

SLOW = 10  # target passes that a draft may take
SLOW_SECONDS = 0.1  # a draft of less is never called slow
SLOW_ROUNDS = 5  # in a row


def plan_limit(e: "Engine", rnd: Round, load: Load) -> Limit:
    """The controller's limit; nothing is drafted for sequences that it fails on."""
    try:
        return e.recipe.controller.plan(e.controller_state, rnd, load)
    except Exception as error:
        disable_all(e, rnd, f"plan: {type(error).__name__}: {error}")
        return Limit.of([0] * rnd.batch, [0] * rnd.batch, e.device)


def propose(e: "Engine", rnd: Round, limit: Limit, base: Proposal) -> tuple[Proposal, Int[Tensor, "B"] | None]:
    """The drafter's tree, selected and compacted; the base where there is no draft or only an invalid one. On an accelerator
    also the fault of each draft, which is read with the verdict."""
    codes = None if hosts.on_host(e.device) else torch.zeros_like(base.tree.tokens[:, 0])
    asked = [b for b, deep in enumerate(limit.depths) if deep > 0 and rnd.host_slots[b] not in e.disabled]
    if not asked:
        return base, codes
    part, own, begun = take(e, asked, rnd, limit, base)
    policy = e.recipe.policy_for(part)
    try:
        proposal = e.recipe.drafter.propose(
            e.drafter_state, part.tempered(e.recipe.draft_temperature), begun, own, policy
        )
        if proposal is begun and begun.tree.num_nodes == 1:
            return base, codes  # nothing was drafted, so there is nothing to check
        if proposal.fault:
            disable_all(e, part, proposal.fault)
        if proposal.inputs is not None:
            check_inputs(e, proposal)
        if proposal.started is not None:
            proposal = with_usable_start(e, part, proposal)
        if codes is not None:
            proposal, found = select_on_device(e, policy, proposal, part.roots(), own)
            return proposal.scatter(asked, base), (
                found if part is rnd else codes.index_copy(0, index(e, asked), found)
            )
        proposal, asked = without_faulty(e, proposal, part, asked, faults(proposal, part, e.info.vocab_size))
        if asked:
            base = _selected(policy, proposal, limit.take(asked)).scatter(asked, base)
    except Exception as error:
        disable_all(e, part, f"propose: {error}")
    return base, codes


def take(e: "Engine", sequences: list[int], rnd: Round, limit: Limit, base: Proposal) -> tuple[Round, Limit, Proposal]:
    """Some sequences of a round, with their limits and their trees so far."""
    if len(sequences) == rnd.batch:
        return rnd, limit, base
    return rnd.take(sequences), limit.take(sequences), base.take(index(e, sequences))


def without_faulty(
    e: "Engine", proposal: Proposal, part: Round, sequences: list[int], wrong: dict[int, str]
) -> tuple[Proposal, list[int]]:
    """The drafts that are valid, and their sequences. A bad distribution costs the nodes drawn from it, any other fault the
    sequence's whole draft; the drafter is disabled in both cases."""
    disable(e, part, wrong)
    good = [b for b in range(part.batch) if wrong.get(b, BAD_PROBS) == BAD_PROBS]
    if BAD_PROBS in wrong.values():
        proposal = proposal.keep(is_valid(proposal))
    if len(good) < part.batch:
        proposal, sequences = proposal.take(index(e, good)), [sequences[b] for b in good]
    return proposal, sequences


def index(e: "Engine", numbers: list[int] | list[list[int]]) -> Int[Tensor, "R ..."]:
    return put(numbers, e.device)


def _selected(policy: TreePolicy, proposal: Proposal, limit: Limit) -> Proposal:
    """The nodes that the policy keeps, without gaps. DrafterError if they exceed the limit, because the cache has entries
    reserved for so many only."""
    tree = proposal.tree
    kept = node_budget.selected(policy, tree, limit) if limit.shared else policy.select(tree, limit)
    if kept is not tree.live and not bool((kept | ~tree.live).all()):
        proposal = proposal.keep(kept)
    if not bool(proposal.tree.live.all()):
        proposal = proposal.compact(int(proposal.tree.live.sum(1).max()))
    if proposal.tree.num_nodes - 1 <= min(limit.budgets):
        return proposal
    inside = proposal.tree.num_in_pass()
    if bool((inside > limit.nodes).any()):
        raise DrafterError(f"{host(inside)} nodes were kept, {list(limit.budgets)} allowed")
    return proposal


def admit_draft(e: "Engine", slot: int, request: Request) -> int | None:
    """How many tokens of a shared prefix the drafter's state already covers. A drafter that fails here is disabled. A slot
    that a part failed to free, the drafter twice, goes on without drafts; the statistics of its next request give the
    reason."""
    if slot in e.unfreed:
        e.free_draft(slot)
        if slot in e.unfreed:
            e.disabled[slot] = e.unfreed[slot]
            log.warning("request %d goes on without drafts: %s", request.id, e.unfreed[slot])
    if slot in e.disabled:
        request.stats.disabled = e.disabled[slot]
        return None
    try:
        return e.recipe.drafter.admit(e.drafter_state, slot, request)
    except Exception as error:
        e.disabled[slot] = request.stats.disabled = f"admit: {error}"
        log.warning("request %d goes on without drafts: admit: %s", request.id, error)
        return None


def free_controller(e: "Engine", slots: Sequence[int]) -> None:
    """Free slots of the controller. Where it fails, its state of a slot may be the last request's, so nothing is drafted for
    the next one there."""
    try:
        e.recipe.controller.free(e.controller_state, slots)
    except Exception as error:
        reason = f"controller's free: {type(error).__name__}: {error}"
        log.warning("the next requests in slots %s go on without drafts: %s", list(slots), reason)
        e.disabled |= dict.fromkeys(slots, reason)


def disable(e: "Engine", rnd: Round, reasons: dict[int, str]) -> None:
    """Take the drafter off these sequences until their requests end. The reason goes into the log and the statistics."""
    for b, reason in reasons.items():
        slot = rnd.host_slots[b]
        e.free_draft(slot)
        e.disabled[slot] = rnd.requests[b].stats.disabled = reason
        log.warning("request %d goes on without drafts: %s", rnd.requests[b].id, reason)


def disable_all(e: "Engine", rnd: Round, reason: str) -> None:
    """The same for all sequences that still have it."""
    disable(e, rnd, {b: reason for b, slot in enumerate(rnd.host_slots) if slot not in e.disabled})


def disable_faulty(e: "Engine", rnd: Round, codes: list[int]) -> None:
    """Take the drafter off sequences whose drafts turned out to be invalid."""
    if any(codes):
        disable(e, rnd, {b: REASONS[code] for b, code in enumerate(codes) if code})


def disable_slow(e: "Engine", rnd: Round, times: Times, proposal: Proposal) -> None:
    """Take the drafter off these sequences when it has been far slower than the target's pass for some rounds."""
    if not e.config.disable_slow_drafts:
        return
    draft, scored = times["propose"], times["score"]
    if proposal.started is not None:  # the draft ran these layers in place of the pass, which had the others alone
        scored /= 1 - proposal.started.layers / e.info.num_layers
    slow = draft > max(SLOW * scored, SLOW_SECONDS)
    e.slow_rounds = e.slow_rounds + 1 if slow else 0
    if e.slow_rounds < SLOW_ROUNDS:
        return
    e.slow_rounds = 0
    disable_all(
        e, rnd, f"drafting takes {draft:.3f} s a round, more than {SLOW} times the target's pass of {scored:.3f} s"
    )


def commit_draft(e: "Engine", chunked: Round | None, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
    """Report new prompt chunks, then the round's outcome, to the drafter, for sequences where it is not disabled."""
    if chunked is not None:
        try:
            e.recipe.drafter.begin(e.drafter_state, chunked, output)
        except Exception as error:
            disable_all(e, chunked, f"begin: {error}")
    if e.disabled:
        active = [b for b, slot in enumerate(rnd.host_slots) if slot not in e.disabled]
        if len(active) < rnd.batch:
            rnd, outcome, output = rnd.take(active), outcome.take(active), output.take(active)
    if not rnd.batch:
        return
    try:
        e.recipe.drafter.commit(e.drafter_state, rnd, outcome, output)
    except Exception as error:
        disable_all(e, rnd, f"commit: {error}")


def update_controller(e: "Engine", rnd: Round, outcome: Outcome) -> None:
    """Report the round's outcome to the controller. One that fails plans no more drafts for these sequences."""
    try:
        e.recipe.controller.update(e.controller_state, rnd, outcome)
    except Exception as error:
        disable_all(e, rnd, f"update: {type(error).__name__}: {error}")

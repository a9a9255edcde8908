"""The drafter's part of a round: get a proposal, check it, and report the outcome to the drafter.

A drafter that raises or returns an invalid proposal is disabled: the requests concerned go on without drafts.
"""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core import host as hosts
from draftwood.core.forward import ForwardOutput
from draftwood.core.host import host, put
from draftwood.core.limit import Limit
from draftwood.core.node_budget import selected
from draftwood.core.proposal import Proposal
from draftwood.core.proposal_checks import BAD_PROBS, REASONS, faults, is_valid
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome, Times, Verdict
from draftwood.engine.carried import continued
from draftwood.engine.selecting import select_unread
from draftwood.engine.starting import with_usable_start
from draftwood.errors import DrafterError

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine

log = logging.getLogger("draftwood")

SLOW = 10  # target passes that a draft may take
SLOW_SECONDS = 0.1  # a draft of less is never called slow
SLOW_ROUNDS = 5  # in a row


def propose(e: "Engine", rnd: Round, limit: Limit) -> tuple[Proposal, Int[Tensor, "B"] | None]:
    """The drafter's tree, selected and compacted; bare roots where there is no draft or only an invalid one. Also what is
    wrong with each draft, as far as nobody has looked yet."""
    bare = Proposal.roots(rnd.roots())
    unread = not hosts.on_host(e.device)
    good = torch.zeros_like(bare.tree.tokens[:, 0]) if unread else None
    drafting = [b for b, deep in enumerate(limit.depths) if deep > 0]  # the sequences that get drafts
    if not drafting:
        return bare, good
    everyone = len(drafting) == rnd.batch
    part = rnd if everyone else rnd.take(drafting)
    own = limit if everyone else limit.take(drafting)
    base, asked = bare if everyone else bare.take(index(e, drafting)), list(range(part.batch))
    if e.carried:
        base, asked = continued(e, part, own, base)
    try:
        proposal = _ask(e, part, base, own, asked)
        if proposal.started is not None:
            proposal = with_usable_start(e, part, proposal)
        if good is not None:
            proposal, codes = select_unread(e, proposal, part.roots(), own)
            if everyone:
                return proposal, codes
            return _among(e, proposal, bare, drafting), good.index_copy(0, index(e, drafting), codes)
        found = faults(proposal, part, e.info.vocab_size)
        proposal, valid = without_faulty(e, proposal, part, drafting, found)
        if not valid:
            return bare, None
        every = len(valid) == rnd.batch
        proposal = _selected(e, proposal, limit if every else limit.take(valid))
        return proposal if every else _among(e, proposal, bare, valid), None
    except Exception as error:
        disable(e, part, {b: f"propose: {error}" for b in asked})
        if base.tree.num_nodes == 1:
            return bare, good
        return base if everyone else base.among(bare, index(e, drafting)), good


def _ask(e: "Engine", part: Round, base: Proposal, limit: Limit, asked: list[int]) -> Proposal:
    """The drafter's tree for the sequences that it may be asked about; the others keep their base."""
    if not asked:
        return base
    everyone = len(asked) == part.batch
    at = None if everyone else index(e, asked)
    if at is not None:
        whole, part, base, limit = base, part.take(asked), base.take(at), limit.take(asked)
    proposal = e.recipe.drafter.propose(e.drafter_state, part, base, limit, e.recipe.policy)
    if proposal.fault:
        disable(e, part, dict.fromkeys(range(part.batch), proposal.fault))
    return proposal if at is None else proposal.among(whole, at)


def without_faulty(
    e: "Engine", proposal: Proposal, part: Round, drafting: list[int], wrong: dict[int, str]
) -> tuple[Proposal, list[int]]:
    """The sequences whose drafts are valid; `wrong` with the others. A bad distribution costs the nodes drawn from it, any
    other fault the sequence's whole draft."""
    disable(e, part, wrong)
    good = [b for b in range(part.batch) if wrong.get(b, BAD_PROBS) == BAD_PROBS]
    if BAD_PROBS in wrong.values():
        proposal = proposal.keep(is_valid(proposal))
    if len(good) < part.batch:
        proposal, drafting = proposal.take(index(e, good)), [drafting[b] for b in good]
    return proposal, drafting


def disable_faulty(e: "Engine", rnd: Round, codes: list[int]) -> None:
    """Take the drafter off sequences whose drafts turned out to be invalid."""
    if any(codes):
        disable(e, rnd, {b: REASONS[code] for b, code in enumerate(codes) if code})


def index(e: "Engine", numbers: list[int] | list[list[int]]) -> Int[Tensor, "R ..."]:
    return put(numbers, e.device)


def _selected(e: "Engine", proposal: Proposal, limit: Limit) -> Proposal:
    """The nodes that the policy keeps, without gaps. DrafterError if they exceed the limit, because the cache has entries
    reserved for so many only."""
    kept = selected(e.recipe.policy, proposal.tree, limit)
    if not bool((kept | ~proposal.tree.live).all()):
        proposal = proposal.keep(kept)
    if not bool(proposal.tree.live.all()):
        proposal = proposal.compact(int(proposal.tree.live.sum(1).max()))
    drafted = proposal.tree.num_drafted()
    if bool((drafted > limit.nodes).any()):
        raise DrafterError(f"{host(drafted)} nodes were kept, {list(limit.budgets)} allowed")
    return proposal


def _among(e: "Engine", part: Proposal, bare: Proposal, drafting: list[int]) -> Proposal:
    """A proposal for some sequences, together with bare roots for the others."""
    whole = part.among(bare, index(e, drafting))
    started = None if part.started is None else part.started.among(drafting, bare.tree.batch)
    return replace(whole, started=started)


def admit_draft(e: "Engine", slot: int, request: Request) -> int | None:
    """How many tokens of a shared prefix the drafter's state already covers. A drafter that fails here is disabled. A slot
    that a part failed to free goes on without drafts, and its next request is told why."""
    if slot in e.disabled:
        request.stats.disabled = e.disabled[slot]
        return None
    try:
        return e.recipe.drafter.admit(e.drafter_state, slot, request)
    except Exception as error:
        e.disabled[slot] = request.stats.disabled = f"admit: {error}"
        log.warning("request %d goes on without drafts: admit: %s", request.id, error)
        return None


def disable(e: "Engine", rnd: Round, reasons: dict[int, str]) -> None:
    """Take the drafter off these sequences until their requests end. The reason goes into the log and the statistics."""
    for b, reason in reasons.items():
        slot = rnd.host_slots[b]
        e.free_draft(slot)
        e.disabled[slot] = rnd.requests[b].stats.disabled = reason
        log.warning("request %d goes on without drafts: %s", rnd.requests[b].id, reason)


def disable_slow(e: "Engine", rnd: Round, times: Times) -> None:
    """Take the drafter off these sequences when it has been far slower than the target's pass for some rounds."""
    if not e.config.disable_slow_drafts:
        return
    draft, scored = times["propose"], times["score"] + times["verify"]  # an accelerator is waited for in verify
    slow = draft > max(SLOW * scored, SLOW_SECONDS)
    e.slow_rounds = e.slow_rounds + 1 if slow else 0
    if e.slow_rounds < SLOW_ROUNDS:
        return
    e.slow_rounds = 0
    reason = f"drafting takes {draft:.3f} s a round, more than {SLOW} times the target's pass of {scored:.3f} s"
    slots = rnd.host_slots
    disable(e, rnd, {b: reason for b, slot in enumerate(slots) if slot not in e.disabled})


def commit_draft(e: "Engine", chunked: Round | None, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
    """Report new prompt chunks, then the round's outcome, to the drafter, for sequences where it is not disabled."""
    if chunked is not None:
        try:
            e.recipe.drafter.begin(e.drafter_state, chunked, output)
        except Exception as error:
            disable(e, chunked, {b: f"begin: {error}" for b in range(chunked.batch)})
    slots = rnd.host_slots if e.disabled else []
    active = [b for b, slot in enumerate(slots) if slot not in e.disabled] if slots else list(range(rnd.batch))
    if not active:
        return
    part, told, output_for = rnd, outcome, output
    if len(active) < rnd.batch:
        index = put(active, e.device)
        v = outcome.verdict
        part = rnd.take(active)
        verdict = Verdict(v.path[index], v.count[index], v.next_token[index])
        told = replace(
            outcome,
            proposal=outcome.proposal.take(index),
            verdict=verdict,
            tokens=outcome.tokens[index],
            drafted=tuple(outcome.drafted[b] for b in active),
            deepest=tuple(outcome.deepest[b] for b in active),
        )
        output_for = replace(output, token_index=None if output.token_index is None else output.token_index[index])
    try:
        e.recipe.drafter.commit(e.drafter_state, part, told, output_for)
    except Exception as error:
        disable(e, part, {b: f"commit: {error}" for b in range(part.batch)})

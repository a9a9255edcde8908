"""One round: next, plan, reserve, propose, score, verify, commit, emit, settle. The file to read first.

    who runs?           scheduler.next      sequences, and their known tokens that are not in the cache
    how much to draft?  controller.plan     a Limit per sequence; depth 0 is plain decoding
    draft               drafter.propose     a tree below each sequence's newest token
    score               one target pass     known tokens and trees together (core/score.py)
    accept a path       verifier.verify     an exact rule
    commit              cache, drafter      the entries of the path are kept, the others dropped
    emit                request.accept      tokens, clipped at stop conditions

A drafter that raises or returns an invalid proposal is disabled for its sequences; the requests go on without it.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from draftwood.core.batch import Batch, Work
from draftwood.core.limit import Limit, Load
from draftwood.core.proposal import Proposal
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.score import KnownTokens, score
from draftwood.core.scored import Scored
from draftwood.core.verdict import Outcome, Times, Verdict
from draftwood.engine.clock import Clock
from draftwood.engine.drafting import (
    commit_draft,
    disable_faulty,
    disable_slow,
    index,
    plan_limit,
    propose,
    update_controller,
)
from draftwood.engine.overlapped import carried_drafts, carry, draft_ahead
from draftwood.engine.verifying import Report, verify
from draftwood.engine.watching import show_watchers
from draftwood.errors import OutOfBlocks

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine


def step(e: "Engine") -> list[Request]:
    """One round for the sequences that the scheduler names; the requests that finished."""
    clock = Clock.of(e.device)
    batch = e.scheduler.next(e.room())
    if not batch.sequences:
        return _settle(e, batch, None)
    rnd, limit, batch = _plan(e, batch)
    if not batch.sequences:
        return _settle(e, batch, None)
    clock.mark("plan")
    base = Proposal.roots(rnd.roots())
    if e.carried:
        base = carried_drafts(e, rnd, limit, base)
    proposal, faults = propose(e, rnd, limit, base)
    clock.mark("propose")
    chains = [KnownTokens(w.slot, w.done, w.tokens) for w in batch.sequences]
    scored = score(e.runner, chains, proposal, rnd, taps=e.needs.shown)
    clock.mark("score")
    ahead = None
    if e.overlapped:
        ahead, faults = draft_ahead(e, rnd, proposal, limit, faults, clock)
    verdict, report = verify(e, proposal, scored, rnd, faults)
    clock.mark("verify")
    e.runner.commit([c.slot for c in chains], *_kept(chains, report))
    emitted = report.emitted
    told = index(e, emitted) if emitted else verdict.path  # of an empty batch, which has none
    outcome = Outcome(proposal, verdict, told, clock.times, tuple(report.drafted), tuple(report.deepest), emitted)
    disable_faulty(e, rnd, report.faults)
    commit_draft(e, _chunked(e, batch), rnd, outcome, scored.output)
    _keep_origin(e, rnd, verdict, scored)
    if ahead is not None:
        carry(e, rnd, ahead, verdict, report)
    clock.mark("commit")
    outcome = replace(outcome, clipped=_emit(e, rnd, report, verdict, scored))
    clock.mark("emit")
    clock.settle()
    _account(e, clock.times, chains, proposal, report)
    e.plain_rounds.count(rnd.requests, outcome.clipped, clock.times)
    disable_slow(e, rnd, clock.times, proposal)
    update_controller(e, rnd, outcome)
    if e.recipe.watch or e.recipe.record:
        show_watchers(e, rnd, outcome, scored.output)
    return _settle(e, batch, outcome)


def _plan(e: "Engine", batch: Batch) -> tuple[Round, Limit, Batch]:
    """The round, its limits, and a batch whose sequences all have room. If the cache is full, drafts are left out first,
    then the youngest request is preempted; a request that is alone and has no room left ends."""
    while True:
        ready = batch.ready
        rnd = _round(e, ready)
        limit = _limit(e, batch, rnd)
        for drafting in (True, False):
            asked = limit if drafting else Limit.of([0] * len(ready), [0] * len(ready), e.device)
            nodes = asked.budgets
            extra = [w.take + (nodes[b] if b < len(ready) else 0) for b, w in enumerate(batch.sequences)]
            try:
                e.runner.reserve([w.slot for w in batch.sequences], extra)
                return rnd, asked, batch
            except OutOfBlocks:
                continue
        slot = e.scheduler.preempt()
        if slot is None:
            batch.sequences[0].request.finish("length")
            return rnd, limit, Batch()
        e.saved_texts.save(slot, e.admitted[slot])
        e.release([slot])
        batch = Batch(tuple(w for w in batch.sequences if w.slot != slot))
        if not batch.sequences:
            return rnd, limit, batch


def _round(e: "Engine", ready: tuple[Work, ...]) -> Round:
    host_slots, host_lengths = [w.slot for w in ready], [w.done + w.take for w in ready]
    slots = index(e, host_slots)
    return Round(
        slots=slots,
        lengths=index(e, host_lengths),
        host_slots=host_slots,
        host_lengths=host_lengths,
        requests=tuple(w.request for w in ready),
        origin={tap: x[slots] for tap, x in e.origin.items()},
        target=e.runner if e.needs.borrow or e.needs.pools else None,
        noise=e.noise,
    )


def _chunked(e: "Engine", batch: Batch) -> Round | None:
    """The sequences that ran more of their known text than the root, for drafters that follow the text."""
    found = tuple(w for w in batch.sequences if (w.take > 1 or not w.ready) and w.slot not in e.disabled)
    return _round(e, found) if found else None


def _limit(e: "Engine", batch: Batch, rnd: Round) -> Limit:
    """The controller's limit, cut to what the request can still emit and the slot can still hold."""
    load = Load(
        cost_model=e.cost_model,
        batch_size=rnd.batch,
        waiting=e.scheduler.waiting,
        context=sum(w.done for w in batch.sequences),
        prompt_tokens=sum(w.take for w in batch.sequences) - rnd.batch,
        spare=e.runner.spare,
    )
    limit = plan_limit(e, rnd, load)
    longest, capacity = e.longest, e.runner.capacity
    # A carried draft is verified although its drafter is disabled. A drafter that runs target layers itself needs all tokens
    # before the root in the cache.
    off = [(w.slot in e.disabled and w.slot not in e.carried) or (e.needs.borrow and w.take > 1) for w in batch.ready]
    each = zip(batch.ready, off, strict=True)
    own = [w.request.draft_room for w in batch.ready]
    room = [0 if none else min(own[b][0], longest - w.done - w.take) for b, (w, none) in enumerate(each)]
    held = [min(own[b][1], capacity - w.done - w.take) for b, w in enumerate(batch.ready)]
    return limit.at_most(room, held)


def _kept(chains: list[KnownTokens], report: Report) -> tuple[list[list[int]], list[list[int]]]:
    """The staged entries to commit and their tokens: the whole chain, then those of the accepted nodes, in path order."""
    entries = [list(range(len(chain.tokens))) for chain in chains]
    tokens = [chain.tokens for chain in chains]
    for b, (accepted, places) in enumerate(zip(report.tokens, report.entries, strict=True)):
        if accepted:
            last = len(tokens[b]) - 1
            entries[b] += [last + place for place in places]
            tokens[b] = [*tokens[b], *accepted]
    return entries, tokens


def _keep_origin(e: "Engine", rnd: Round, verdict: Verdict, scored: Scored) -> None:
    """Features of the node after which the next root was emitted."""
    if not rnd.batch or not e.needs.origin:
        return
    last = verdict.path.gather(1, verdict.count[:, None])
    for tap in e.needs.origin:
        feature = scored.feature(tap, last)[:, 0]
        if tap not in e.origin:
            e.origin[tap] = feature.new_zeros(e.config.max_num_seqs, feature.shape[-1])
        e.origin[tap][rnd.slots] = feature


def _emit(e: "Engine", rnd: Round, report: Report, verdict: Verdict, scored: Scored) -> tuple[int, ...]:
    """Add tokens to their requests, which clip them; count the round; add log-probabilities where they are wanted."""
    longest = e.longest
    clipped: list[int] = []
    for b, request in enumerate(rnd.requests):
        if request.finished:
            clipped.append(0)
            continue
        tokens = [*report.tokens[b], report.after[b]]
        if request.params.logprobs is not None:
            nodes = verdict.path[b, : len(tokens)]
            request.logprobs += scored.logprobs(b, nodes, tokens, request.params.logprobs)
        taken = request.accept(tokens, [*report.sources[b], -1])
        del request.logprobs[len(request.output) :]
        request.stats.count(report.deepest[b], report.drafted[b], min(len(tokens) - 1, taken))
        clipped.append(taken)
        if not request.finished and request.num_known > longest:
            request.finish("length")
    return tuple(clipped)


def _account(e: "Engine", times: Times, chains: list[KnownTokens], proposal: Proposal, report: Report) -> None:
    times.tokens = sum(len(c.tokens) for c in chains) + sum(report.in_pass)
    times.draft_passes += proposal.passes
    times.draft_seconds += proposal.pass_seconds
    times.draft_nodes = sum(report.in_pass)
    times.context = sum(c.done for c in chains)
    times.prompt_tokens = sum(len(c.tokens) for c in chains) - proposal.tree.batch
    e.cost_model.observe(times)
    for part, seconds in times.seconds.items():
        e.totals.add(part, seconds)
    e.totals.tokens += times.tokens
    e.totals.draft_passes += times.draft_passes
    e.totals.draft_seconds += times.draft_seconds
    e.rounds += 1


def _settle(e: "Engine", batch: Batch, outcome: Outcome | None) -> list[Request]:
    """Remove finished requests; their slots are free for the next round."""
    held = dict(e.scheduler.running)
    finished = e.scheduler.settle(batch, outcome)
    if finished:
        gone = {r.id for r in finished}
        e.release([slot for slot, r in held.items() if r.id in gone])
    return finished

"""The overlapped loop: while the target scores a tree, the drafter draws the beginning of the next one.

    propose   score ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ verify   commit     the pass runs on its device until the verdict is read
                    └ propose again ┘       └ re-root    AHEAD nodes below the tree in flight; those below the emitted
                                                         token are what the next round begins with

Random numbers of the second draft are its own, and it sees everything that was drawn but no verdict.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.proposal_checks import NOT_AHEAD, REASONS, fault_codes, faults, not_ahead, without_faults
from draftwood.core.report import Report
from draftwood.core.round import Round
from draftwood.core.verdict import Verdict
from draftwood.engine.carried import Carried
from draftwood.engine.drafting import disable, index, without_faulty

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine
    from draftwood.engine.step import Clock


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """Trees in flight with what was drafted below them."""

    proposal: Proposal
    sequences: list[int]  # of the round


def draft_ahead(
    e: "Engine", rnd: Round, base: Proposal, limit: Limit, wrong: Int[Tensor, "B"] | None, clock: "Clock"
) -> tuple[Ahead | None, Int[Tensor, "B"] | None]:
    """Ask the drafter again, with the tree in flight as its base. Also what is wrong with each draft, the second one
    included, where nobody has looked yet. None in the serial loop."""
    if not e.overlapped:
        return None, wrong
    slots, requests = rnd.host_slots, rnd.requests
    drafts = [deep > 0 and requests[b].remaining > 2 for b, deep in enumerate(limit.depths)]  # this round and the next
    asked = [b for b, on in enumerate(drafts) if on and slots[b] not in e.disabled]
    if not asked:
        return None, wrong
    everyone = len(asked) == rnd.batch
    part = (rnd if everyone else rnd.take(asked)).ahead()
    base = replace(base if everyone else base.take(index(e, asked)), depths=None)
    try:
        own = limit if everyone else limit.take(asked)
        grown = e.recipe.drafter.propose(e.drafter_state, part, base, own, e.recipe.policy)
        found = _read(e, part, base, grown, asked) if wrong is None else _unread(e, part, base, grown, asked, wrong)
        if grown.fault:
            disable(e, part, dict.fromkeys(range(part.batch), grown.fault))
        clock.times.draft_passes += max(grown.passes - base.passes, 0)
        clock.times.draft_seconds += max(grown.pass_seconds - base.pass_seconds, 0.0)
        return found
    except Exception as error:
        disable(e, part, {b: f"propose: {error}" for b in range(part.batch)})
        return None, wrong
    finally:
        clock.mark("propose")


def _read(
    e: "Engine", part: Round, base: Proposal, grown: Proposal, sequences: list[int]
) -> tuple[Ahead | None, Int[Tensor, "B"] | None]:
    """Checked where looking is free."""
    found = faults(grown, part, e.info.vocab_size)
    for b, other in enumerate(not_ahead(grown.tree, base.tree).tolist()):
        if other:
            found.setdefault(b, REASONS[NOT_AHEAD])
    grown, sequences = without_faulty(e, grown, part, sequences, found)
    return (Ahead(grown, sequences) if sequences else None), None


def _unread(
    e: "Engine", part: Round, base: Proposal, grown: Proposal, sequences: list[int], wrong: Int[Tensor, "B"]
) -> tuple[Ahead | None, Int[Tensor, "B"] | None]:
    """The same where it would stop the device: faults are read with the verdict, as those of the first draft are."""
    roots, vocab_size = part.roots(), e.info.vocab_size
    codes = fault_codes(grown, roots, vocab_size)
    codes = torch.where((codes == 0) & not_ahead(grown.tree, base.tree), NOT_AHEAD, codes)
    grown = without_faults(grown, codes, roots, vocab_size)
    at = index(e, sequences)
    return Ahead(grown, sequences), wrong.index_copy(0, at, torch.where(wrong[at] != 0, wrong[at], codes))


def carry(e: "Engine", rnd: Round, ahead: Ahead | None, verdict: Verdict, report: Report) -> None:
    """What was drafted ahead, below the token that was emitted, is kept for the next round. Nothing in the serial loop."""
    if ahead is None:
        return
    at = index(e, ahead.sequences)
    own = Verdict(verdict.path[at], verdict.count[at], verdict.next_token[at])
    # A base that nothing was drawn for says nothing about draws; whoever goes on with it draws as the policy does.
    proposal = replace(ahead.proposal, draw=e.recipe.policy.draw).reroot(own)
    for i, b in enumerate(ahead.sequences):
        length = rnd.host_lengths[b] + len(report.paths[b])
        e.carried[rnd.host_slots[b]] = Carried(proposal, i, length, report.after[b])

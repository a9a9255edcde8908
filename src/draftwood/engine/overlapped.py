"""The overlapped loop: while the target scores a tree, the drafter draws the beginning of the next one.

    propose   score ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ verify   commit     the pass runs on its device until the verdict is read
                    └ propose again ┘       └ re-root    AHEAD nodes below the tree in flight; those below the emitted
                                                         token are what the next round begins with

The second draft has random numbers of its own, and depends on everything that was drawn but on no verdict. So what is
carried to the next round is an ordinary draft of that round, and has to be verified. It is dropped with its slot, or for
reasons that do not depend on its tokens, such as a smaller limit; never because its drafter failed after drawing it.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.limit import Limit
from draftwood.core.node_budget import whole_levels
from draftwood.core.proposal import Proposal
from draftwood.core.proposal_checks import fault_codes, faults, without_faults
from draftwood.core.round import Round
from draftwood.core.verdict import Verdict
from draftwood.engine.drafting import disable_all, index, take, without_faulty
from draftwood.engine.verifying import Report

if TYPE_CHECKING:
    from draftwood.engine.clock import Clock
    from draftwood.engine.engine import Engine


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """Trees in flight with what was drafted below them."""

    proposal: Proposal
    sequences: list[int]  # of the round


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """One sequence of a proposal that was given its next root, and the text that it continues."""

    proposal: Proposal
    sequence: int
    length: int  # known tokens, the root being the last of them
    root: int


def carried_drafts(e: "Engine", rnd: Round, limit: Limit, bare: Proposal) -> Proposal:
    """The trees that these sequences begin the round with: what was carried for them, within their limits; bare roots for
    the others."""
    found: dict[int, tuple[Proposal, list[int], list[int]]] = {}  # usually one proposal, that of the round before
    for b, (slot, length) in enumerate(zip(rnd.host_slots, rnd.host_lengths, strict=True)):
        held = e.carried.pop(slot, None)
        if held is not None and (held.length, held.root) == (length, rnd.requests[b].root):
            _, here, there = found.setdefault(id(held.proposal), (held.proposal, [], []))
            here.append(b)
            there.append(held.sequence)
    if not found:
        return bare
    base = bare
    for proposal, here, there in found.values():
        base = proposal.take(index(e, there)).scatter(here, base)
    base = base.keep(whole_levels(base.tree, limit)).compact(min(limit.tier.nodes, base.tree.num_nodes))
    return base.with_own_probs()


def draft_ahead(
    e: "Engine", rnd: Round, base: Proposal, limit: Limit, codes: Int[Tensor, "B"] | None, clock: "Clock"
) -> tuple[Ahead | None, Int[Tensor, "B"] | None]:
    """Ask the drafter again, with the tree in flight as its base. On an accelerator also the fault of each draft, first or
    second."""
    drafts = [
        deep > 0 and rnd.requests[b].remaining > 2 for b, deep in enumerate(limit.depths)
    ]  # this round and the next
    asked = [b for b, on in enumerate(drafts) if on and rnd.host_slots[b] not in e.disabled]
    if not asked:
        return None, codes
    part, own, base = take(e, asked, rnd.ahead(), limit, replace(base, depths=None))
    roots, vocab_size = part.roots(), e.info.vocab_size
    try:
        drafted = part.tempered(e.recipe.draft_temperature)
        grown = e.recipe.drafter.propose(e.drafter_state, drafted, base, own, e.recipe.policy)
        if codes is None:
            kept, asked = without_faulty(e, grown, part, asked, faults(grown, part, vocab_size, base.tree))
        else:
            at, found = index(e, asked), fault_codes(grown, roots, vocab_size, base.tree)
            kept = without_faults(grown, found, roots, vocab_size)
            codes = codes.index_copy(0, at, torch.where(codes[at] != 0, codes[at], found))
        if grown.fault:
            disable_all(e, part, grown.fault)
        clock.times.draft_passes += max(grown.passes - base.passes, 0)
        clock.times.draft_seconds += max(grown.pass_seconds - base.pass_seconds, 0.0)
        return (Ahead(kept, asked) if asked else None), codes
    except Exception as error:
        disable_all(e, part, f"propose: {error}")
        return None, codes
    finally:
        clock.mark("propose")


def carry(e: "Engine", rnd: Round, ahead: Ahead, verdict: Verdict, report: Report) -> None:
    """What was drafted ahead, below the token that was emitted, is kept for the next round."""
    # The draw of a base without drawn nodes is GIVEN; a drafter that continues it draws as the policy does.
    proposal = replace(ahead.proposal, draw=e.recipe.policy.draw).reroot(verdict.take(ahead.sequences))
    for i, b in enumerate(ahead.sequences):
        length = rnd.host_lengths[b] + len(report.paths[b])
        e.carried[rnd.host_slots[b]] = Carried(proposal, i, length, report.after[b])

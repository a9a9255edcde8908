"""What was drafted ahead, carried by slot from one round to the next.

A carried tree is an ordinary draft of its round: it was drawn without knowing the verdict that made its root. So once it is
drawn it has to be judged. It is dropped with its slot, or for reasons that its tokens have no part in, such as a smaller
limit; never because its drafter broke after drawing it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftwood.core.host import put
from draftwood.core.limit import Limit
from draftwood.core.node_budget import whole_levels
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """One sequence of a proposal that was given its next root, and the text that it continues."""

    proposal: Proposal
    sequence: int
    length: int  # known tokens, the root being the last of them
    root: int


def continued(e: "Engine", rnd: Round, limit: Limit, bare: Proposal) -> tuple[Proposal, list[int]]:
    """The trees that these sequences begin the round with: what was carried for them, within their limits, and bare roots
    for the others. Also the sequences that the drafter may be asked about: one that was disabled is asked no more, and
    what it drew before is still judged."""
    found: dict[int, tuple[Proposal, list[int], list[int]]] = {}  # usually one proposal, that of the round before
    for b, (slot, length) in enumerate(zip(rnd.host_slots, rnd.host_lengths, strict=True)):
        held = e.carried.pop(slot, None)
        if held is not None and (held.length, held.root) == (length, rnd.requests[b].root):
            _, here, there = found.setdefault(id(held.proposal), (held.proposal, [], []))
            here.append(b)
            there.append(held.sequence)
    asked = [b for b, slot in enumerate(rnd.host_slots) if slot not in e.disabled]
    if not found:
        return bare, asked
    base = bare
    for proposal, here, there in found.values():
        own = proposal.take(put(there, e.device))
        base = own if len(here) == rnd.batch else own.among(base, put(here, e.device))
    base = base.keep(whole_levels(base.tree, limit)).compact(min(limit.tier.nodes, base.tree.num_nodes))
    return base.with_own_probs(), asked

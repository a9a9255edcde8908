"""What a drafter has started, as far as the target's pass can go on from it."""

from dataclasses import replace
from typing import TYPE_CHECKING

from draftwood.core import host as hosts
from draftwood.core.host import host
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.tree import AHEAD
from draftwood.errors import DrafterError

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine


def with_usable_start(e: "Engine", part: Round, proposal: Proposal) -> Proposal:
    """The proposal, without its started layers where the pass has to run them again: the draft broke off before all nodes
    were run; or nobody may look at its entries and they are not the nodes' numbers, or lie behind the end of a slot.
    DrafterError if what was started does not fit the proposal."""
    started, tree, info = proposal.started, proposal.tree, e.info
    assert started is not None
    shape, want = tuple(started.hidden.shape), (*tree.tokens.shape, info.hidden_size)
    if not e.needs.borrow or shape != want or not 0 < started.layers <= info.num_layers:
        raise DrafterError(
            f"hidden states of shape {shape} after {started.layers} layers, expected {want} after 1 to {info.num_layers}, "
            "from a drafter that borrows the target"
        )
    room = [e.runner.capacity - e.runner.length(slot) for slot in part.host_slots]
    if hosts.on_host(e.device):
        _check_entries(proposal, room)
        usable = proposal.fault is None
    else:
        usable = proposal.fault is None and started.entries is None and tree.num_nodes <= min(room)
    return proposal if usable else replace(proposal, started=None)


def _check_entries(proposal: Proposal, room: list[int]) -> None:
    """DrafterError unless every node has an entry of its own inside its slot, the root the first."""
    started, tree = proposal.started, proposal.tree
    assert started is not None
    numbers = [list(range(tree.num_nodes))] * tree.batch
    entries: list[list[int]] = numbers if started.entries is None else host(started.entries)
    ride: list[list[bool]] = host(tree.live & (tree.role != AHEAD))
    for own, there, most in zip(entries, ride, room, strict=True):
        used = [entry for entry, rides in zip(own, there, strict=True) if rides]
        if used[:1] != [0] or len(set(used)) < len(used) or min(used) < 0 or max(used) >= most:
            raise DrafterError(f"nodes are started at entries {used}, expected 0 first and others below {most}")

"""LastRounds: which texts end where their last round left them. Only there the round's origin is that of the root."""

from collections.abc import Sequence

from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome

LastRounds = dict[int, tuple[Request, int]]
"""The state of a part that reads `rnd.origin`. By slot: the request of its last round, and its length afterwards. A new
request has none yet, nor has one that was preempted."""


def just_ran(state: LastRounds, rnd: Round) -> list[bool]:
    """Of each sequence: whether the origin is the root's."""
    last = [state.get(slot, (None, 0)) for slot in rnd.host_slots]
    return [
        request is owner and size == length
        for request, size, (owner, length) in zip(rnd.requests, rnd.host_lengths, last, strict=True)
    ]


def note(state: LastRounds, rnd: Round, outcome: Outcome) -> None:
    """After a round."""
    paths = outcome.verdict.to_host().paths
    for slot, request, length, path in zip(rnd.host_slots, rnd.requests, rnd.host_lengths, paths, strict=True):
        state[slot] = request, length + len(path)


def forget(state: LastRounds, slots: Sequence[int]) -> None:
    for slot in slots:
        state.pop(slot, None)

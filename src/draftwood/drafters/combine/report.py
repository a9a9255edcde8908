"""The numbers behind the next choice of a Route: what each alternative is expected to bring, and where the choice turns.

chosen    the alternative with most tokens a second, if that is MARGIN times plain decoding's
pays      from  MARGIN * (seconds of its round / seconds of a plain round) - 1  accepted tokens on
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftwood.core.round import Round
from draftwood.drafters.combine.route import HOTTEST, MARGIN, Route

ESTIMATES = (0.25, 0.5, 0.75, 0.9)  # of a retriever, at which its correction is shown


@dataclass(frozen=True, slots=True)
class ModelOutlook:
    """A draft of the model: accepted tokens, scored nodes, seconds of the round and of its part that is drafting."""

    accepted: float
    nodes: float
    seconds: float
    draft_seconds: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return (1 + self.accepted) / self.seconds


@dataclass(frozen=True, slots=True)
class Outlook:
    """Of one sequence. `seconds`: of a round by drafted nodes, without drafting; 0: plain decoding."""

    seconds: tuple[float, ...]
    model: ModelOutlook | None  # None: there is none, or it does not follow this text
    corrected: tuple[tuple[tuple[float, float], ...], ...]  # of each retriever: its estimate of a token, and our own

    @property
    def plain_rate(self) -> float:
        return 1 / self.seconds[0]

    def least_accepted(self, seconds: float) -> float:
        """Accepted tokens from which a round of so many seconds pays."""
        return MARGIN * seconds / self.seconds[0] - 1

    def most_draft_seconds(self) -> float | None:
        """Seconds of drafting up to which the model's draft pays."""
        m = self.model
        if m is None:
            return None
        return (1 + m.accepted) * self.seconds[0] / MARGIN - (m.seconds - m.draft_seconds)


def outlook(route: Route, state: Any, rnd: Round, b: int = 0) -> Outlook | None:
    """Of sequence b, from the state that the route has now; None before its first round."""
    if not state.seconds:
        return None
    params, slot = rnd.requests[b].params, rnd.host_slots[b]
    model = None
    if route.model is not None and params.temperature <= HOTTEST:
        accepted, nodes, draft = route.arm.expected(state.arm, rnd)[b]
        low = min(int(nodes), len(state.seconds) - 2)
        scored = state.seconds[low] + (nodes - low) * (state.seconds[low + 1] - state.seconds[low])
        model = ModelOutlook(accepted, nodes, scored + draft, draft)
    corrected = tuple(
        tuple((estimate, each[not params.greedy].chance(slot, estimate)) for estimate in ESTIMATES)
        for each in state.survival
    )
    return Outlook(tuple(state.seconds), model, corrected)


def names(route: Route) -> tuple[str, ...]:
    """Of the sources of a route's nodes, by number."""
    listed: Sequence[Any] = route.retrievers if route.model is None else (*route.retrievers, route.model)
    return tuple(type(each).__name__ for each in listed)

"""Stateless: what a drafter does that keeps nothing between rounds, and so has nothing to follow or to free."""

from collections.abc import Sequence
from typing import Any

from draftwood.core.forward import ForwardOutput
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome


class Stateless:
    """Abstract: subclasses have `propose`, `needs` and `draws`. One with a state overrides the methods that it needs."""

    __slots__ = ()

    def init(self, slots: int) -> Any:
        return None

    def admit(self, state: Any, slot: int, request: Request) -> int:
        return request.num_known

    def begin(self, state: Any, rnd: Round, output: ForwardOutput) -> None:
        return None

    def commit(self, state: Any, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        return None

    def free(self, state: Any, slots: Sequence[int]) -> None:
        return None

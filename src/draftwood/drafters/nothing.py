"""Nothing: the drafter that never guesses. With it the engine is a plain decoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome


@dataclass(frozen=True, slots=True)
class Nothing:
    """Proposes the base as it is."""

    needs: Needs = Needs()
    draws: frozenset[Draw] = frozenset(Draw)

    def init(self, slots: int) -> None:
        return None

    def admit(self, state: Any, slot: int, request: Request) -> int:
        return request.num_known

    def begin(self, state: None, rnd: Round, output: ForwardOutput) -> None:
        return None

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        return base

    def commit(self, state: None, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        return None

    def free(self, state: None, slots: Sequence[int]) -> None:
        return None

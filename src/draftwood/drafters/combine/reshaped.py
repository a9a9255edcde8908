"""Reshaped: a drafter whose draws come from a sharper or flatter distribution than the request asks for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Drafter, TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.draft_sampling import AS_ASKED, DraftSampling
from draftwood.core.verdict import Outcome

T = TypeVar("T", bound=Drafter)


@dataclass(frozen=True, slots=True, eq=False)
class Reshaped:
    """`sampling` changes q where the drafter makes it, on the one road from logits to draft distributions: so q is what was
    drawn from, and p is not changed. Where tokens are given, not drawn, it changes which paths are the most probable."""

    drafter: Drafter
    sampling: DraftSampling

    @property
    def needs(self) -> Needs:
        return self.drafter.needs

    @property
    def draws(self) -> frozenset[Draw]:
        return self.drafter.draws

    def init(self, slots: int) -> Any:
        return self.drafter.init(slots)

    def admit(self, state: Any, slot: int, request: Request) -> int:
        return self.drafter.admit(state, slot, request)

    def begin(self, state: Any, rnd: Round, output: ForwardOutput) -> None:
        self.drafter.begin(state, rnd, output)

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        return self.drafter.propose(state, rnd.shaped(self.sampling), base, limit, policy)

    def commit(self, state: Any, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        self.drafter.commit(state, rnd, outcome, output)

    def free(self, state: Any, slots: Sequence[int]) -> None:
        self.drafter.free(state, slots)


def reshaped(drafter: T, temperature: float) -> "T | Reshaped":
    """The drafter itself, unless something is asked for."""
    sampling = DraftSampling(temperature=temperature)
    return drafter if sampling == AS_ASKED else Reshaped(drafter, sampling)

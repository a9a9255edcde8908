"""A drafter, or a retriever, around another one: what faults are injected by."""

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
from draftwood.drafters.retrieval.retrieved import Retrieved


@dataclass(frozen=True, slots=True, eq=False)
class Wrapped:
    """Abstract. It does what the inner one does."""

    inner: Any

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    @property
    def draws(self) -> frozenset[Draw]:
        return self.inner.draws

    def init(self, slots: int) -> Any:
        return self.inner.init(slots)

    def admit(self, state: Any, slot: int, request: Request) -> int:
        return self.inner.admit(state, slot, request)

    def begin(self, state: Any, rnd: Round, output: ForwardOutput) -> None:
        self.inner.begin(state, rnd, output)

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        return self.inner.propose(state, rnd, base, limit, policy)

    def retrieve(self, state: Any, rnd: Round, limit: Limit) -> list[Retrieved]:
        return self.inner.retrieve(state, rnd, limit)

    def commit(self, state: Any, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        self.inner.commit(state, rnd, outcome, output)

    def free(self, state: Any, slots: Sequence[int]) -> None:
        self.inner.free(state, slots)

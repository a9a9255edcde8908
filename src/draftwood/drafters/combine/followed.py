"""Followed: a drafter that follows the texts of requests only while drafts are asked for.

To follow a text costs some percent of a pass even if nothing is ever drafted: features are kept, prompts are read a second
time. Where a controller decodes plainly for long, because many requests run at once, new requests are admitted without this
drafter, but for one in `FEW`, so that trials find out when drafts pay again. A request that is not followed decodes plainly
to its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.host import put
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Drafter, TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome

FEW = 6  # of so many requests one is followed in any case
SHARE = 0.1  # of the rounds that ask for drafts: with more, every request is followed
_NEW = 0.02  # weight of a round in that share


@dataclass(slots=True)
class _State:
    inner: Any
    slots: set[int] = field(default_factory=set[int])  # that are followed
    asked: bool = False  # whether this round asked for drafts
    share: float = 1.0  # of rounds that did
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Followed:
    """`drafter`: any that drafts each sequence by itself. `at_first`: every request is followed until rounds show whether
    drafts are asked for; False where they are not expected to pay."""

    drafter: Drafter
    at_first: bool = True

    @property
    def needs(self) -> Needs:
        return self.drafter.needs

    @property
    def draws(self) -> frozenset[Draw]:
        return self.drafter.draws

    def init(self, slots: int) -> _State:
        return _State(self.drafter.init(slots), share=float(self.at_first))

    def admit(self, state: _State, slot: int, request: Request) -> int:
        state.requests += 1
        if state.share < SHARE and state.requests % FEW:
            state.slots.discard(slot)
            return request.num_known
        state.slots.add(slot)
        return self.drafter.admit(state.inner, slot, request)

    def begin(self, state: _State, rnd: Round, output: ForwardOutput) -> None:
        if own := self._own(state, rnd):
            self.drafter.begin(state.inner, rnd if len(own) == rnd.batch else rnd.take(own), output)

    def propose(self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        state.asked = True
        own = self._own(state, rnd)
        if len(own) == rnd.batch:
            return self.drafter.propose(state.inner, rnd, base, limit, policy)
        if not own:
            return base
        begun = base.take(put(own, rnd.device))
        made = self.drafter.propose(state.inner, rnd.take(own), begun, limit.take(own), policy)
        return base if made is begun else made.scatter(own, base)

    def commit(self, state: _State, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        state.share += _NEW * (state.asked - state.share)
        state.asked = False
        own = self._own(state, rnd)
        if len(own) == rnd.batch:
            self.drafter.commit(state.inner, rnd, outcome, output)
        elif own:
            self.drafter.commit(state.inner, rnd.take(own), outcome.take(own), output.take(own))

    def free(self, state: _State, slots: Sequence[int]) -> None:
        own = [slot for slot in slots if slot in state.slots]
        state.slots.difference_update(slots)
        if own:
            self.drafter.free(state.inner, own)

    @staticmethod
    def _own(state: _State, rnd: Round) -> list[int]:
        return [b for b, slot in enumerate(rnd.host_slots) if slot in state.slots]

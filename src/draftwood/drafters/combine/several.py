"""What drafters made of drafters share: the calls that go to each of them in turn."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Drafter
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome


class Several:
    """Abstract: subclasses have `drafters` and `propose`. The state is a list, one for each drafter."""

    __slots__ = ()

    @property
    def drafters(self) -> tuple[Drafter, ...]:
        raise AssertionError("a subclass has drafters")

    @property
    def needs(self) -> Needs:
        found = Needs()
        for each in self.drafters:
            found = found | each.needs
        return replace(found, trims=all(each.needs.trims for each in self.drafters))

    def init(self, slots: int) -> list[Any]:
        return [each.init(slots) for each in self.drafters]

    def admit(self, state: list[Any], slot: int, request: Request) -> int:
        return min(each.admit(own, slot, request) for each, own in zip(self.drafters, state, strict=True))

    def begin(self, state: list[Any], rnd: Round, output: ForwardOutput) -> None:
        for each, own in zip(self.drafters, state, strict=True):
            each.begin(own, rnd, output)

    def commit(self, state: list[Any], rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        for each, own in zip(self.drafters, state, strict=True):
            each.commit(own, rnd, outcome, output)

    def free(self, state: list[Any], slots: Sequence[int]) -> None:
        for each, own in zip(self.drafters, state, strict=True):
            each.free(own, slots)


def with_source(proposal: Proposal, number: int) -> Proposal:
    """The same draft, its nodes marked as those of drafter `number`."""
    source = proposal.tree.source
    return replace(proposal, tree=replace(proposal.tree, source=torch.where(source >= 0, number, source)))

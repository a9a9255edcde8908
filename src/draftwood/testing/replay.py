"""Replay: drafts a known answer as a chain, every few tokens wrong. It costs nothing, so what is left is the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwood.core.draw import Draw
from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome


@dataclass(frozen=True, slots=True)
class Replay:
    """Guesses the next tokens of `answers[prompt]`; where the place divides by `spoil`, another token. Behind the known
    answer it guesses on, so that every tree has the size that was asked for."""

    answers: Mapping[tuple[int, ...], Sequence[int]] = field(repr=False)
    vocab_size: int
    spoil: int = 5
    needs: Needs = Needs()
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def init(self, slots: int) -> None:
        return None

    def admit(self, state: Any, slot: int, request: Request) -> int:
        return request.num_known

    def begin(self, state: None, rnd: Round, output: ForwardOutput) -> None:
        return None

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        tokens = [
            self._next(tuple(request.prompt), len(request.output), depth)
            for request, depth in zip(rnd.requests, limit.depths, strict=True)
        ]
        return base.with_given(
            tokens, [list(range(len(x))) for x in tokens], [[-float(i) for i in range(len(x))] for x in tokens]
        )

    def _next(self, prompt: tuple[int, ...], place: int, depth: int) -> list[int]:
        answer = self.answers.get(prompt, ())
        known = list(answer[place : place + depth])
        known += [0] * (depth - len(known))
        return [t if (place + i) % self.spoil else (t + 1) % self.vocab_size for i, t in enumerate(known)]

    def commit(self, state: None, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        return None

    def free(self, state: None, slots: Sequence[int]) -> None:
        return None

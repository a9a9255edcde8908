"""Drafters that change some tokens of a given answer: NoisyOracle drafts a tree with a chosen acceptance, Replay a chain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from draftwood.core.forward import Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.round import Round
from draftwood.drafters.stateless import Stateless


@dataclass(frozen=True, slots=True)
class NoisyOracle(Stateless):
    """Guesses the next tokens of `answers[prompt]`; each is right with probability `right`, else another token.

    Beside every guess stands a wrong sibling, so that rounds verify trees and commits move entries.
    """

    answers: Mapping[tuple[int, ...], Sequence[int]] = field(repr=False)
    vocab_size: int
    right: float = 0.7
    needs: Needs = Needs()
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        tree = base.tree
        at = torch.zeros_like(tree.tokens[:, 0])
        for level in range(limit.tier.depth):
            true = torch.tensor([self._token(rnd, b, level) for b in range(rnd.batch)], device=rnd.device)
            deep = (limit.depth > level) & (true >= 0) & (at >= 0)
            coin = rnd.coin("oracle", at.clamp_min(0), torch.full_like(true, self.right, dtype=torch.float64), deep)
            wrong = (true + 1 + level) % self.vocab_size
            guess = torch.where(coin, true, wrong)
            other = torch.where(coin, wrong, (true + 2 + level) % self.vocab_size)
            pair = torch.stack([other, guess], dim=1)
            first = tree.num_nodes
            tree = tree.add(at[:, None].expand(-1, 2), pair, live=deep[:, None].expand(-1, 2), copies=0)
            at = torch.where(deep, first + 1, -1)
        return Proposal(tree, Draw.GIVEN, q_index=torch.full_like(tree.tokens, -1))

    def _token(self, rnd: Round, sequence: int, level: int) -> int:
        request = rnd.requests[sequence]
        answer = self.answers.get(tuple(request.prompt), ())
        place = len(request.output) + level
        return answer[place] if place < len(answer) else -1


@dataclass(frozen=True, slots=True)
class Replay(Stateless):
    """Guesses the next tokens of `answers[prompt]`; at every `spoil`-th place of the answer another token. Behind the end of
    the answer it guesses token 0, so that every tree has the full size. Drafting takes no time, so a measured round is the
    engine's own time."""

    answers: Mapping[tuple[int, ...], Sequence[int]] = field(repr=False)
    vocab_size: int
    spoil: int = 5
    needs: Needs = Needs()
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

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

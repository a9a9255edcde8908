"""Sized: of some sizes of a tree the one that is expected to emit most tokens a second, here and now.

    tokens of a round    one for every sequence, and what the acceptance table expects, shifted by what was accepted so far
    seconds of a round   the cost model: target pass over roots and trees, draft, rest

A size is chosen before anything is drafted, from finished rounds only, so every rule stays exact. Timed rounds are few and
noisy and the best sizes lie close together, so a size is left only for one that is clearly better. Where plain decoding is,
nothing is drafted; the shift then fades, so that a text that became easier is tried again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftwood.controllers.estimates.acceptance import Acceptance, Outlook, Size
from draftwood.controllers.estimates.shifts import Shifts
from draftwood.core.forward import Needs
from draftwood.core.limit import CostEstimate, Limit, Load
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome

PLAIN: Size = (0, 0)
USUAL: Size = (3, 3)  # where a choice begins
BETTER = 1.2  # times as fast: what another size must be expected to be before the present one is left
LEAST = 1.0  # of plain decoding's speed: below it nothing is drafted
PAUSES = 4, 32  # consecutive choices of plain decoding before a size is tried again: at first, at most


@dataclass(slots=True)
class _State:
    shifts: Shifts
    slots: tuple[int, ...] = ()  # for which the choice was made
    best: Size | None = None  # the choice
    size: Size = PLAIN  # of this round
    left: int = 0  # rounds until the next choice
    plain: int = 0  # consecutive choices of plain decoding
    pause: int = PAUSES[0]  # of them until the next trial


@dataclass(frozen=True, slots=True)
class Sized:
    """`sizes`: the candidates. `cost_model`: what a round of each size takes, from rounds that were timed side by side; the
    engine's own has seen each size on another text. `step`: how fast the shift follows the rounds. `every`: rounds between
    two choices."""

    acceptance: Acceptance
    sizes: tuple[Size, ...]
    cost_model: CostEstimate
    step: float = 5.0
    every: int = 12
    needs: Needs = Needs()

    def init(self, slots: int) -> _State:
        return _State(Shifts(Outlook.of(self.acceptance, self.sizes), self.step))

    def plan(self, state: _State, rnd: Round, load: Load) -> Limit:
        if not rnd.batch:
            return Limit.of([], [], rnd.device)
        slots = tuple(rnd.host_slots)
        if slots != state.slots:
            state.slots, state.left, state.best = slots, 0, None
        if not state.left:
            state.size = self._choose(state, rnd)
            state.left = self.every if state.size == state.best else 1  # a trial lasts one round
        state.left -= 1
        depth, nodes = state.size
        return Limit.of([depth] * rnd.batch, [nodes] * rnd.batch, rnd.device)

    def _choose(self, state: _State, rnd: Round) -> Size:
        accepted = np.zeros(len(self.sizes))
        for slot, request in zip(rnd.host_slots, rnd.requests, strict=True):
            accepted += state.shifts.accepted(slot, request.params.temperature)
        found = gains(self.sizes, accepted, self.cost_model, max(rnd.batch, 1))
        state.best = best_size(self.sizes, found, state.best)
        if state.best != PLAIN:
            state.pause, state.plain = PAUSES[0], 0
            return state.best
        # Plain decoding, and ever more rarely a trial of the best size, in case times or text have changed.
        state.plain += 1
        if state.plain < state.pause:
            return PLAIN
        state.pause, state.plain = min(2 * state.pause, PAUSES[1]), 0
        return self.sizes[int(found.argmax())]

    def update(self, state: _State, rnd: Round, outcome: Outcome) -> None:
        if not state.size[0]:
            state.shifts.fade(rnd.host_slots)
            return
        at = self.sizes.index(state.size)
        judged = zip(outcome.deepest, outcome.judged, outcome.accepted, strict=True)
        for slot, request, (deepest, levels, kept) in zip(rnd.host_slots, rnd.requests, judged, strict=True):
            if levels:
                # The table holds whole drafts: one that was cut counts as a shorter one with the same chance per level.
                levels = levels if levels < deepest else state.size[0]
                state.shifts.learn(slot, at, request.params.temperature, kept, levels)

    def free(self, state: _State, slots: Sequence[int]) -> None:
        for slot in slots:
            state.shifts.free(slot)
            state.slots = ()  # the next request may have the same slot


def best_size(sizes: Sequence[Size], found: np.ndarray, present: Size | None = None) -> Size:
    """The size with the greatest gain; but the present one, at first a short chain, as long as that pays and no other one is
    clearly better. Plain decoding where none pays."""
    gain = dict(zip(sizes, found.tolist(), strict=True))
    best = max(gain, key=lambda size: gain[size])
    before = present if present in gain else USUAL
    if before in gain and gain[before] >= LEAST and gain[best] < BETTER * gain[before]:
        best = before
    return best if gain[best] >= LEAST else PLAIN


def gains(sizes: Sequence[Size], accepted: np.ndarray, cost_model: CostEstimate, batch: int = 1) -> np.ndarray:
    """How many times as many tokens a second as plain decoding each size is expected to emit. [S]
    `accepted`: tokens of the whole batch. [S]"""
    fixed = cost_model.rest_seconds()
    passes = {nodes: cost_model.pass_seconds(batch + batch * nodes) for nodes in {n for _, n in sizes} | {0}}
    draft = [cost_model.draft_seconds(depth, batch * nodes) for depth, nodes in sizes]
    seconds = np.array([passes[nodes] for _, nodes in sizes]) + np.array(draft) + fixed
    return (batch + accepted) / batch * (passes[0] + fixed) / seconds

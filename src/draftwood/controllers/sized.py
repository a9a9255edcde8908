"""Sized: of some sizes of a tree the one that is expected to emit most tokens a second, here and now.

    tokens of a round    one for every sequence, and what the acceptance table expects, shifted by what was accepted so far
    seconds of a round   the cost model: target pass over roots and trees, draft, rest

A size is chosen before anything is drafted, from finished rounds only, so every rule stays exact. Where no size beats plain
decoding nothing is drafted; the shift then fades, so that a text that became easier is tried again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from draftwood.controllers.acceptance import Acceptance, Outlook, Size
from draftwood.core.forward import Needs
from draftwood.core.limit import CostEstimate, Limit, Load
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome, Times

PLAIN: Size = (0, 0)
NEAR = 0.9  # of the best size's speed: what is tried now and then, if it has at most twice the nodes
EQUAL = 0.95  # of the best size's speed: within this the smallest size is taken, because times are noisy
LONGEST = 96  # consecutive choices without a draft


@dataclass(slots=True)
class _Sequence:
    shift: float
    rounds: int = 0  # drafted


@dataclass(slots=True)
class _State:
    outlook: Outlook
    sequences: dict[int, _Sequence] = field(default_factory=dict[int, _Sequence])
    shift: float = 0.0  # of all sequences, for new ones
    rounds: int = 0
    size: Size = PLAIN
    chosen: tuple[tuple[int, ...], int] | None = None  # for which slots, and rounds left until the next choice
    cost_model: CostEstimate | None = None
    choices: int = 0
    plain: int = 0  # consecutive choices that no size was worth
    pause: int = 12  # of them until the next trial


@dataclass(frozen=True, slots=True)
class Sized:
    """`sizes`: the candidates. `trials`: rounds that were timed beforehand; a cost model that has not seen them starts with
    them. `step` and `settle`: how fast the shift follows the rounds. `every`: rounds between two choices.
    `explore`: each of so many choices takes another size that is expected to be nearly as good."""

    acceptance: Acceptance
    sizes: tuple[Size, ...]
    trials: tuple[Times, ...] = ()
    step: float = 5.0
    settle: tuple[int, int] = (20, 60)
    every: int = 4
    explore: int = 48
    needs: Needs = Needs()

    def init(self, slots: int) -> _State:
        return _State(Outlook.of(self.acceptance, self.sizes))

    def plan(self, state: _State, rnd: Round, load: Load) -> Limit:
        if state.cost_model is not load.cost_model:
            state.cost_model = load.cost_model
            for times in self.trials:
                load.cost_model.observe(times)
        slots = tuple(rnd.slots.tolist())
        left = state.chosen[1] if state.chosen is not None and state.chosen[0] == slots else 0
        if not left:
            state.size = self._choose(state, rnd, load)
            left = 1 if state.choices % self.explore == 0 else self.every  # a trial lasts one round
        state.chosen = slots, left - 1
        depth, nodes = state.size
        return Limit.of([depth] * rnd.batch, [nodes] * rnd.batch, rnd.device)

    def _choose(self, state: _State, rnd: Round, load: Load) -> Size:
        accepted = np.zeros(len(self.sizes))
        for slot, request in zip(rnd.slots.tolist(), rnd.requests, strict=True):
            known = state.sequences.setdefault(slot, _Sequence(state.shift))
            accepted += state.outlook.accepted(request.params.temperature, known.shift)
        found = gains(self.sizes, accepted, load.cost_model, max(rnd.batch, 1), load.context, load.prompt_tokens)
        at = smallest_of_best(self.sizes, found)
        state.choices += 1
        if found[at] <= 1:
            return self._probe(state, self.sizes[at])
        state.pause = self.explore
        if state.choices % self.explore:
            return self.sizes[at]
        # Times of sizes that are never used would stay what they were when they were measured last.
        largest = 2 * self.sizes[at][1]
        each = zip(self.sizes, found.tolist(), strict=True)
        near = [size for size, gain in each if gain > NEAR * found[at] and size[1] <= largest]
        return near[state.choices // self.explore % len(near)]

    def _probe(self, state: _State, size: Size) -> Size:
        """Plain decoding, and ever more rarely a trial of the best size, in case times or text have changed."""
        state.plain += 1
        if state.plain % state.pause:
            return PLAIN
        state.pause, state.plain = min(2 * state.pause, LONGEST), 0
        return size

    def update(self, state: _State, rnd: Round, outcome: Outcome) -> None:
        if not state.size[0]:
            for slot in rnd.slots.tolist():
                if slot in state.sequences:
                    state.sequences[slot].shift += 0.02 * (state.shift - state.sequences[slot].shift)
            state.shift *= 0.99
            return
        at = self.sizes.index(state.size)
        counts = outcome.verdict.count.tolist()
        for slot, request, nodes, kept in zip(rnd.slots.tolist(), rnd.requests, outcome.drafted, counts, strict=True):
            known = state.sequences.get(slot)
            if known is None or not nodes:
                continue
            for each in (known, state):
                expected = float(state.outlook.accepted(request.params.temperature, each.shift)[at])
                least, most = self.settle
                gain = self.step / min(least + each.rounds, most)
                each.shift = min(max(each.shift + gain * (kept - expected) / state.size[0], -4.0), 4.0)
                each.rounds += 1

    def free(self, state: _State, slots: Sequence[int]) -> None:
        for slot in slots:
            state.sequences.pop(slot, None)


def smallest_of_best(sizes: Sequence[Size], found: np.ndarray) -> int:
    """Of the sizes whose gain is about the best, the one with the fewest nodes."""
    best = [i for i, gain in enumerate(found.tolist()) if gain >= EQUAL * found.max()]
    return min(best, key=lambda i: (sizes[i][1], -found[i]))


def gains(
    sizes: Sequence[Size],
    accepted: np.ndarray,  # [S] tokens of the whole batch
    cost_model: CostEstimate,
    batch: int = 1,
    context: int = 0,
    prompt_tokens: int = 0,
) -> np.ndarray:
    """How many times as many tokens a second as plain decoding each size is expected to emit. [S]"""
    fixed, roots = cost_model.rest_seconds(), batch + prompt_tokens
    passes = {nodes: cost_model.pass_seconds(roots + batch * nodes, context) for nodes in {n for _, n in sizes} | {0}}
    draft = [cost_model.draft_seconds(depth, batch * nodes) for depth, nodes in sizes]
    seconds = np.array([passes[nodes] for _, nodes in sizes]) + np.array(draft) + fixed
    return (batch + accepted) / batch * (passes[0] + fixed) / seconds

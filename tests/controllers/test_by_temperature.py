"""Sampled sequences always draft chains of one length, so that a seed gives one text; greedy rounds go by what pays."""

from typing import Any, ClassVar

import pytest

from draftwood.controllers.by_temperature import ByTemperature
from draftwood.controllers.fixed import Fixed
from draftwood.core.limit import Limit
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, near, random_probs
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.block import Block

DEPTHS = ((0.5, 3), (0.8, 2), (1.0, 0))


class Restless(Fixed):
    """Another size in every round, as one that follows the clock."""

    asked: ClassVar[list[int]] = []
    learned: ClassVar[list[int]] = []

    def plan(self, state: Any, rnd: Round, load: Any) -> Limit:
        Restless.asked.append(1 + len(Restless.asked) % 4)
        return Limit.of([Restless.asked[-1]] * rnd.batch, [6] * rnd.batch, rnd.device)

    def update(self, state: Any, rnd: Round, outcome: Any) -> None:
        Restless.learned.append(rnd.batch)


def texts(temperatures: list[float], tokens: int = 16) -> list[Any]:
    probs = random_probs(5, 2)
    made = Recipe(
        drafter=TableDrafter(near(probs, 5, 4, 0.3)),
        policy=Chain(),
        verifier=Block(),
        controller=ByTemperature(Restless(1), DEPTHS),
        greedy_policy=BestFirst(2),
    )
    params = [SamplingParams(temperature=t, seed=i, max_tokens=tokens) for i, t in enumerate(temperatures)]
    return serve(make_engine(CpuRunner(TableModel(5, probs)), made), [[i] for i in range(len(params))], params)


@pytest.mark.parametrize(("temperature", "depth"), [(0.1, 3), (0.5, 3), (0.51, 2), (0.8, 2), (1.0, 0), (1.4, 0)])
def test_the_length_follows_the_temperature_alone(temperature: float, depth: int) -> None:
    Restless.asked, Restless.learned = [], []
    (got,) = texts([temperature])
    assert got.stats.draft_tokens == 0 if depth == 0 else len(got.stats.drafted) == depth
    assert not Restless.asked and not Restless.learned


def test_a_seed_gives_one_text_whatever_the_greedy_controller_learned() -> None:
    Restless.asked = []
    first = [r.output for r in texts([0.7, 0.9])]
    Restless.asked = [0] * 3
    assert [r.output for r in texts([0.7, 0.9])] == first


def test_greedy_rounds_are_the_other_controllers() -> None:
    Restless.asked, Restless.learned = [], []
    (got,) = texts([0.0])
    assert got.stats.draft_tokens and Restless.asked and Restless.learned


def test_sequences_of_a_batch_have_their_own_lengths() -> None:
    alone = [texts([0.3])[0].output]
    together = texts([0.3, 1.0])
    assert together[0].output == alone[0] and together[1].stats.draft_tokens == 0

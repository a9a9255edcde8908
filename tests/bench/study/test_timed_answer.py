"""An answer and its rounds: nothing is lost, the prompt's reading is left out, the estimates learn."""

from dataclasses import replace
from pathlib import Path

import pytest

from draftwood import recipes
from draftwood.bench.study.timed_answer import TimedEngine
from draftwood.controllers.costs.cost import CostModel
from draftwood.core.sampling.params import SamplingParams
from draftwood.models.loading.load import Loaded, load
from draftwood.runners.open import runner_of

PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Loaded:
    return load(str(folder), dtype="float32")


def test_decoding_is_every_round_after_the_first_token(loaded: Loaded):
    cost_model = CostModel()
    found = TimedEngine(loaded, "autoregressive", cost_model).answer(PROMPT, PARAMS)
    assert len(found.tokens) == 12 and found.error is None
    assert [r.emitted for r in found.decoding] == [1] * 11
    assert all(r.times.tokens == 1 and r.times.total <= r.wall for r in found.decoding)
    assert found.per_token == pytest.approx(sum(r.wall for r in found.decoding) / 11)
    assert sum(r.wall for r in found.decoding) < found.seconds
    assert sum(knot.weight for knot in cost_model.knots) > 0


def test_no_answer_remembers_the_one_before(loaded: Loaded):
    recipe = recipes.build("prompt_lookup", runner_of(loaded))
    first, second = (TimedEngine(loaded, recipe, CostModel()).answer(PROMPT, PARAMS) for _ in range(2))
    assert first.tokens == second.tokens
    assert replace(first.stats, saved_ms=None) == replace(second.stats, saved_ms=None), "but for what was timed"
    assert second.stats.cached_tokens == 0
    assert sum(r.emitted for r in second.decoding) < len(second.tokens)

"""A fault changes what the engine meets, never the text; what decides about drafts sees it as it would see a real one."""

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftwood import recipes
from draftwood.bench.study.hostile.faults import (
    SlowDrafter,
    Switch,
    WrongDrafts,
    slow_runner,
    slowly,
    with_slow_drafts,
    with_wrong_drafts,
)
from draftwood.core.config import EngineConfig
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.errors import OptionError
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded, load
from draftwood.results import Result
from draftwood.runners.open import runner_of

PROMPT = [5] * 20
EASY: dict[str, Any] = {"ignore_eos": True, "logit_bias": {5: 100.0}}  # a text that repeats itself
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Loaded:
    return load(str(folder))


def built(loaded: Loaded, name: str) -> Recipe:
    return recipes.build(name, runner_of(loaded))


def opened(loaded: Loaded, recipe: Recipe) -> LLM:
    return LLM(loaded, recipe, config=EngineConfig(max_num_seqs=1, max_model_len=250, disable_slow_drafts=False))


def answer(loaded: Loaded, recipe: Recipe) -> Result:
    return opened(loaded, recipe).generate([PROMPT], SamplingParams(max_tokens=60, **EASY))[0]


def accepted(result: Result) -> int:
    return sum(result.stats.accepted)


def test_wrong_drafts_are_never_accepted_and_change_no_token(loaded: Loaded) -> None:
    recipe, plain = built(loaded, "prompt_lookup"), answer(loaded, built(loaded, "autoregressive"))
    off, on = (answer(loaded, with_wrong_drafts(recipe, Switch(x), loaded.info.vocab_size)) for x in (False, True))
    assert accepted(off) > 0 == accepted(on) and on.stats.rounds_none > 0
    assert plain.token_ids == off.token_ids == on.token_ids and on.stats.disabled is None


def shift(loaded: Loaded, recipe: Recipe) -> float:
    """What Route has learned of copies in this text, in log-odds; the text has not ended."""
    llm = opened(loaded, recipe)
    request = llm.request(PROMPT, SamplingParams(max_tokens=200, **EASY))
    llm.engine.add(request)
    while len(request.output) < 20:
        llm.engine.step()
    return llm.engine.drafter_state.survival[0][0].shifts[0]


@pytest.fixture
def cheap_drafts(loaded: Loaded) -> Recipe:
    """auto on a machine where a pass of many tokens costs no more than one of a single token."""
    recipe = built(loaded, "auto")
    controller: Any = recipe.controller
    times = tuple(replace(each, seconds={"score": 1.0, "emit": 0.0}) for each in controller.times)
    return replace(recipe, controller=replace(controller, times=times))


def test_a_recipe_that_chooses_among_drafts_learns_that_they_are_wrong(loaded: Loaded, cheap_drafts: Recipe) -> None:
    size = loaded.info.vocab_size
    wrong = shift(loaded, with_wrong_drafts(cheap_drafts, Switch(True), size))
    # Twin: drafts that are changed behind its back look right to it.
    behind = replace(cheap_drafts, drafter=WrongDrafts(cheap_drafts.drafter, Switch(True), size))
    assert wrong < 0 < shift(loaded, behind)


def test_drafts_that_were_drawn_are_refused(loaded: Loaded) -> None:
    recipe = built(loaded, "speculative_sampling:verifier=rejection")
    with pytest.raises(OptionError, match="would not follow their distribution\nhint: "):
        with_wrong_drafts(recipe, Switch(), loaded.info.vocab_size)


def busy(seconds: float) -> None:
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass


def seconds_of(run: Any) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start


def test_slow_work_takes_so_many_times_as_long_and_returns_the_same() -> None:
    found: list[int] = []
    assert seconds_of(lambda: found.append(slowly(lambda: busy(0.004) or 7, 5.0, CPU))) >= 0.02
    assert found == [7]


class Passes:
    """A runner whose passes take four milliseconds."""

    info = SimpleNamespace(device=CPU)
    capacity = 77

    def execute(self, x: Any, **options: Any) -> Any:
        busy(0.004)
        return x, options


@pytest.mark.parametrize(
    ("on", "several", "tokens", "slow"),
    [
        (True, False, 1, True),
        (True, False, 3, True),
        (True, True, 1, False),
        (True, True, 3, True),
        (False, False, 3, False),
    ],
)
def test_passes_are_slow_while_the_switch_is_on(on: bool, several: bool, tokens: int, slow: bool) -> None:
    inner: Any = Passes()
    runner, x = slow_runner(inner, Switch(on), 6.0, several=several), SimpleNamespace(ids=torch.zeros(tokens))
    spent = [seconds_of(lambda: runner.execute(x)) for _ in range(5)]  # type: ignore[arg-type]
    assert min(spent) >= 0.024 if slow else min(spent) < 0.024
    assert runner.execute(x, taps=frozenset({1})) == (x, {"taps": frozenset({1})})  # type: ignore[arg-type]
    assert runner.capacity == 77


def test_a_slow_drafter_reports_slow_draft_passes() -> None:
    base = Proposal.roots(torch.tensor([3]))
    inner: Any = SimpleNamespace(propose=lambda *_: replace(base, passes=1, pass_seconds=0.5))
    rnd: Any = SimpleNamespace(device=CPU)
    limit: Any = None
    for on, expected in ((False, 0.5), (True, 1.5)):
        assert SlowDrafter(inner, Switch(on), 3.0).propose(None, rnd, base, limit, limit).pass_seconds == expected


def test_a_slow_drafter_changes_no_token(loaded: Loaded) -> None:
    recipe = built(loaded, "prompt_lookup")
    a, b = answer(loaded, recipe), answer(loaded, with_slow_drafts(recipe, Switch(True), 2.0))
    assert a.token_ids == b.token_ids and a.stats.accepted == b.stats.accepted

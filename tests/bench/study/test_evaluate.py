"""One recipe on some prompts: its text is held against plain decoding's, its speed against other prompts' estimates."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftwood.bench import other_processes
from draftwood.bench.study.evaluate import Asked, Evaluation, Evaluator, evaluator, forecast, speed_up
from draftwood.bench.study.predict import Spent
from draftwood.bench.study.timed_answer import Answer
from draftwood.cli.studying.eval import text_line
from draftwood.core.request import Stats
from draftwood.core.verdict import Times, Verdict
from draftwood.errors import OptionError
from draftwood.models.loading.load import Loaded, load
from draftwood.runners.open import runner_of
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.verifiers.match import Match

pytestmark = pytest.mark.slow  # whole runs

PROMPTS = [[1, 2, 3, 1, 2, 3], [7, 8, 7, 8, 7], [9] * 8]


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Loaded:
    return load(str(folder), dtype="float32")


def quick(loaded: Loaded, recipe: str, **options: Any) -> Evaluator:
    made = evaluator(loaded, recipe, max_tokens=16, **options)
    made.pause = False
    return made


@pytest.mark.parametrize(
    ("roots", "temperature", "why"),
    [
        ("draft", 0.0, ""),
        ("draft", 1.0, "Rejection uses random numbers of its own: other texts from the same distribution"),
        ("target", 0.0, "LongestRun is LOSSY"),
    ],
)
def test_text_that_is_not_compared_says_why(loaded: Loaded, roots: str, temperature: float, why: str):
    inner = "speculative_sampling:draft=first:1"
    judge = quick(loaded, "dynamic_mcsd", inner=inner, weights="none", roots=roots)
    found = judge.run(PROMPTS[:1], temperature)
    assert found.text.why == why and found.text.judged == (not why)
    assert (text_line(found) == f"not compared: {why}") == bool(why)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_random_head_leaves_the_text_alone_and_is_counted(loaded: Loaded, tmp_path: Path, temperature: float):
    head = write_head(tmp_path / "head.safetensors", random_head("eagle3", runner_of(loaded)))
    found = quick(loaded, "eagle3", weights=str(head), depth=3, beam=2, nodes=6).run(PROMPTS, temperature)
    assert found.text.judged and found.text.good and found.text.answers == 3 and not found.failures
    assert found.accepted.passes <= found.accepted.tokens <= 3 * 16
    assert found.accepted.by_position and sum(found.accepted.rounds) > 0
    assert found.forecast is not None and found.decoding is not None and found.whole is not None
    assert found.forecast.measured.recipe.nodes > 3 and found.forecast.measured.plain.nodes == 1
    assert found.forecast.measured.recipe.draft > 0


class Stubborn(Match):
    """Emits its own favourite whatever the target says: not exact, and does not know it."""

    def verify(self, proposal: Any, target: Any, rnd: Any) -> Verdict:
        found = super().verify(proposal, target, rnd)
        return replace(found, next_token=(found.next_token + 1) % 250, listed=None)


def test_another_text_is_found(loaded: Loaded):
    made = quick(loaded, "prompt_lookup")
    made.recipe = replace(made.recipe, verifier=Stubborn())
    found = made.run(PROMPTS[:1], 0.0)
    assert not found.text.good and "prompt 1, token 0" in found.text.wrong[0]
    assert found.forecast is None  # one prompt has no other half


def test_a_drafter_that_fails_is_named(loaded: Loaded, monkeypatch: pytest.MonkeyPatch):
    made = quick(loaded, "prompt_lookup")

    def fail(*_: Any) -> None:
        raise RuntimeError("lost its table")

    monkeypatch.setattr(type(made.recipe.drafter), "propose", fail)
    (found,) = made.run(PROMPTS[:1], 0.0).failures
    assert "prompt 1" in found and "lost its table" in found


@pytest.mark.parametrize(("prompt", "said"), [([], "prompt 2 is empty"), ([1] * 9999, "prompt 2 has 9999 tokens")])
def test_what_cannot_be_answered_is_refused_before_anything_is(loaded: Loaded, prompt: list[int], said: str):
    with pytest.raises(OptionError, match=said):
        quick(loaded, "prompt_lookup").check([[1], prompt])


def made(seconds: float, emitted: int, rounds: int = 4) -> Answer:
    times = Times({"score": seconds * 0.9, "propose": 0.0}, tokens=emitted)
    return Answer((), Stats(), (Spent(times, seconds, emitted),) * rounds, rounds * seconds)


def asked(plain: float, ours: float, tau: int) -> Asked:
    return Asked((made(plain, 1), made(plain, 1)), (made(ours, tau), made(ours, tau)))


def test_a_speed_up_is_plain_seconds_for_as_many_tokens_over_the_recipes():
    found = speed_up([asked(1.0, 2.0, 3), asked(2.0, 2.0, 3)])
    assert found is not None and found.value == pytest.approx((3 * 1 + 3 * 2) / (2 + 2))
    assert speed_up([]) is None


def test_the_prediction_knows_nothing_of_the_prompts_it_is_held_against():
    def both(known: Sequence[Asked], others: Sequence[Asked]) -> tuple[float, float]:
        found = forecast([x for pair in zip(known, others, strict=True) for x in pair])
        assert found is not None
        return found.predicted.speed_up, found.ratio.value

    known = [asked(1.0, 2.0, 3)] * 3
    predicted, measured = both(known, [asked(1.0, 2.0, 3)] * 3)
    assert predicted == pytest.approx(1.5, rel=0.02) and measured == pytest.approx(1.5)
    again, slower = both(known, [asked(1.0, 4.0, 2)] * 3)
    assert again == predicted and slower == pytest.approx(0.5)


def test_answers_too_short_to_time_are_left_out():
    one = made(1.0, 1, 1)
    short = Asked((one, one), (one, one))
    assert not short.timed and speed_up([short]) is None and forecast([short, asked(1.0, 2.0, 3)]) is None


def test_other_busy_processes_make_times_invalid():
    quiet: Any = Evaluation(0.0, None, None, None, None, None, foreign=(0.0, 0.1))  # type: ignore[arg-type]
    assert not quiet.disturbed
    assert replace(quiet, foreign=(0.0, 2 * other_processes.BUSY)).disturbed

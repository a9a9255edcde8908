"""A comparison tells the truth: what was promised, what was kept, what was slower."""

import io
import sys

import pytest

from draftwood.cli.answering.comparison import Comparison, same_text_promised
from draftwood.cli.screen import Screen
from draftwood.core.request import Stats
from draftwood.core.sampling.params import SamplingParams
from draftwood.llm import LLM, Result


def run_of(recipe: str, tokens: tuple[int, ...], seconds: float, lossless: bool = True) -> Result:
    return Result(
        prompt="p",
        num_prompt_tokens=1,
        text=" ".join(map(str, tokens)),
        token_ids=tokens,
        pieces=(),
        finish_reason="stop",
        error=None,
        logprobs=None,
        seed=0,
        recipe=recipe,
        lossless=lossless,
        stats=Stats(target_passes=2),
        seconds=seconds,
    )


def compared(seconds: float = 1.0, tokens=(1, 2, 3), promised: bool = True, lossless: bool = True) -> Comparison:
    return Comparison([run_of("auto", tokens, seconds, lossless)], [run_of("autoregressive", (1, 2, 3), 1.0)], promised)


def test_same_text_keeps_the_promise():
    assert compared().identical and compared().kept


def test_other_text_breaks_it_and_the_place_is_named():
    other = compared(tokens=(1, 5, 3))
    assert not other.kept and "differ from token 1 on" in other.words() and "should not" in other.words()


def test_without_a_promise_nothing_is_broken():
    assert compared(tokens=(1, 5), promised=False).kept
    assert "same distribution" in compared(tokens=(1, 5), promised=False).words()
    assert "LOSSY" in compared(tokens=(1, 5), promised=False, lossless=False).words()


@pytest.mark.parametrize(
    ("seconds", "said", "cell"),
    [
        (0.5, "auto is 2.00 times as fast", "2.00x"),
        (2.0, "auto is slower than plain decoding here: 0.50", "0.50x slower"),
        (1.001, "auto is as fast", "1.00x"),
    ],
)
def test_speed_is_said_in_words(monkeypatch, seconds, said, cell):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    compared(seconds).show(Screen())
    shown = out.getvalue()
    assert said in shown and cell in shown and ("slower" in shown) == (seconds > 1.5)


def test_speed_that_tokens_per_pass_do_not_allow_is_called_noise():
    assert "the times are noisy" in compared(0.01).words() and "noisy" not in compared(2.0).words()


def test_several_runs_count_together():
    both = Comparison([run_of("auto", (1, 2), 1.0)] * 2, [run_of("plain", (1, 2), 2.0)] * 2, True)
    assert both.ratio == pytest.approx(2) and both.identical


@pytest.mark.parametrize(
    ("recipe", "options", "temperature", "promised"),
    [
        ("auto", {}, 0.0, True),
        ("auto", {}, 1.0, True),
        ("speculative_sampling", {"draft": "first:2"}, 0.0, True),
        ("speculative_sampling", {"draft": "first:2"}, 1.0, False),
        ("speculative_sampling", {"draft": "first:2", "verifier": "match"}, 1.0, True),
    ],
)
def test_text_is_promised_when_greedy_or_matching(weights, recipe, options, temperature, promised):
    llm = LLM(weights, recipe, **options)
    assert same_text_promised(llm, SamplingParams(temperature=temperature)) is promised

"""Copies from the text and from earlier answers change how fast a text is written, not the text."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood import recipes
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.retrieval.suffix import Suffix
from draftwood.errors import OptionError
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from planted_rules import FirstCopy

TARGET = tiny_runner(2)
V = TARGET.info.vocab_size
PROMPTS = [([1 + i, 2, 3, 4] * 6)[: 6 + 2 * i] for i in range(8)]
TWICE = [*PROMPTS, *PROMPTS]  # the second time some answers are known
LATER = dict.fromkeys(range(8, 16), 30)


def alternating(tokens: Any) -> torch.Tensor:
    """Even and odd tokens take turns."""
    return torch.arange(V) % 2 == len(tokens) % 2


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "grammar": {"grammar": alternating},
    "cut": {"top_p": 0.8, "temperature": 0.7},
}


def served(recipe: Recipe, way: str, change: int = 0) -> list[Request]:
    """`change`: seeds of the second time differ by so much, and with them the answers."""
    options = {"temperature": 1.0, "max_tokens": 24, **WAYS[way]}
    each = [SamplingParams(seed=i % 8 + change * (i // 8) * (i % 2), **options) for i in range(16)]
    return serve(make_engine(TARGET, recipe), TWICE, each, arrive=LATER)


@pytest.mark.parametrize("mode", ["path", "tree"])
@pytest.mark.parametrize("way", WAYS)
def test_the_text_is_that_of_plain_decoding_whatever_is_accepted(way: str, mode: str) -> None:
    done = served(recipes.build("suffix_decoding", TARGET, mode=mode, nodes=16), way, 50)
    assert [r.output for r in done] == [r.output for r in served(recipes.build("autoregressive", TARGET), way, 50)]
    assert {r.stats.disabled for r in done} == {None}
    rounds = [sum(getattr(r.stats, f"rounds_{what}") for r in done) for what in ("all", "some", "none")]
    assert min(rounds) > 0, rounds


@pytest.mark.parametrize("way", ["greedy", "sampled"])
def test_a_rule_that_accepts_every_copy_writes_another_text(way: str) -> None:
    plain = recipes.build("autoregressive", TARGET)
    wrong = replace(recipes.build("suffix_decoding", TARGET, nodes=16), verifier=FirstCopy())
    assert [r.output for r in served(wrong, way)] != [r.output for r in served(plain, way)]


@pytest.mark.parametrize(("share", "fewer"), [(True, True), (False, False)])
def test_an_answer_that_was_given_before_takes_fewer_passes(share: bool, fewer: bool) -> None:
    done = served(recipes.build("suffix_decoding", TARGET, share=share, nodes=16), "sampled")
    first, again = (sum(r.stats.target_passes for r in part) for part in (done[:8], done[8:]))
    assert (again < 0.7 * first) == fewer


def test_names_carry_options() -> None:
    name = "suffix_decoding:depth=12:nodes=20:mode=path:factor=1.5:offset=1:p_min=0.2:share=no"
    recipe: Any = recipes.build(name, TARGET)
    assert recipe.drafter == Suffix(12, "path", 1.5, 1.0, 0.2, False)
    assert (recipe.controller.depth, recipe.controller.nodes) == (11, 20)
    for wrong in ({"depth": 1}, {"mode": "forest"}, {"p_min": 2.0}, {"factor": -1.0}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            recipes.build("suffix_decoding", TARGET, **wrong)

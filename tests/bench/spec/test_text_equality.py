"""Whose texts must be plain decoding's: recipes that are greedy, or follow its draws."""

from dataclasses import replace

import pytest
import torch

from draftwood import recipes
from draftwood.bench.spec.text_equality import (
    COARSE_EVERY,
    COARSE_NEAR,
    EVERY,
    NEAR,
    difference,
    few_enough,
    following,
    not_compared,
    tokens_per_tie,
)
from draftwood.core.protocols import Runner
from draftwood.core.sampling.params import SamplingParams
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.verifiers.match import Match

SMALL = "speculative_sampling:draft=first:1"


@pytest.fixture(scope="module")
def target() -> Runner:
    return tiny_runner()


@pytest.mark.parametrize(
    ("name", "temperature", "options"),
    [
        ("speculative_sampling", 1.0, {"verifier": "match"}),
        ("speculative_sampling", 0.0, {}),  # greedy text is the same by any rule
        ("speculative_sampling:verifier=rejection", 1.0, {}),  # somebody asked for it
        ("dynamic_mcsd", 1.0, {}),  # its rules are others
        ("prompt_lookup", 1.0, {}),
    ],
)
def test_recipes_follow_plain_decodings_draws_where_they_offer_it(
    name: str, temperature: float, options: dict[str, str]
):
    assert following(name, temperature) == options


@pytest.mark.parametrize(
    ("name", "temperature", "why"),
    [
        (f"traversal_verification:inner={SMALL}", 0.0, ""),
        (
            f"traversal_verification:inner={SMALL}",
            1.0,
            "Traversal uses random numbers of its own: other texts from the same distribution",
        ),
        (f"{SMALL}:verifier=match", 1.0, ""),
        ("autoregressive", 1.0, ""),
    ],
)
def test_a_rule_with_draws_of_its_own_keeps_the_distribution_and_not_the_text(
    target: Runner, name: str, temperature: float, why: str
):
    assert not_compared(recipes.build(name, target), temperature) == why


def test_a_lossy_rule_is_compared_at_no_temperature(target: Runner):
    recipe = replace(recipes.build("autoregressive", target), verifier=replace(Match(), lossless=False))
    assert not_compared(recipe, 0.0) == not_compared(recipe, 1.0) == "Match is LOSSY"


GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=8)


def test_equal_texts_have_no_difference(target: Runner):
    assert difference(target, [1, 2], [3, 4], [3, 4], GREEDY) is None


def test_a_text_that_ended_earlier_is_never_near(target: Runner):
    found = difference(target, [1, 2], [3], [3, 4], GREEDY)
    assert found is not None and (found.position, found.tokens) == (1, (-1, 4)) and not found.near
    assert str(found) == "token 1: -1 instead of 4, margin inf"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_that_the_target_does_not_choose_is_no_near_tie(target: Runner, temperature: float):
    params = replace(GREEDY, temperature=temperature)
    margins = []
    for token in range(8):
        found = difference(target, [1, 2], [3, token], [3, 8], params)
        assert found is not None and found.position == 1
        margins.append(found.margin)
    assert max(margins) > NEAR and all(margin >= 0 for margin in margins)


def test_in_sixteen_bits_near_is_a_few_steps_between_numbers_and_ties_come_more_often(target: Runner):
    coarse = tiny_runner(dtype=torch.bfloat16)
    for runner, most in ((target, NEAR), (coarse, 0.5)):
        found = difference(runner, [1, 2], [3, 5], [3, 8], GREEDY)
        assert found is not None and found.close <= most and found.near == (found.margin <= found.close)
        sampled = difference(runner, [1, 2], [3, 5], [3, 8], replace(GREEDY, temperature=1.0))
        assert sampled is not None and sampled.close == (NEAR if runner is target else COARSE_NEAR)
    assert [tokens_per_tie(name) for name in ("int8 vnni", "float32", "bfloat16", "transformers float16")] == [
        EVERY,
        EVERY,
        COARSE_EVERY,
        COARSE_EVERY,
    ]
    assert (
        few_enough(1, 100, COARSE_EVERY) and few_enough(2, 200, COARSE_EVERY) and not few_enough(2, 199, COARSE_EVERY)
    )
    assert not few_enough(2, 200), "the twin: in float32 two in two hundred are too many"


def test_a_recipe_whose_rule_is_match_already_is_not_asked_for_it() -> None:
    assert following("draft_and_verify", 1.0) == {} and following("speculative_sampling", 1.0) == {"verifier": "match"}

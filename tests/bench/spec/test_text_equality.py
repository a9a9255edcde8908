"""Whose texts must be plain decoding's: recipes that are greedy, or follow its draws."""

from dataclasses import replace

import pytest

from draftwood import recipes
from draftwood.bench.spec.text_equality import following, not_compared
from draftwood.core.protocols import Model
from draftwood.testing.tiny import tiny_decoder
from draftwood.verifiers.match import Match

SMALL = "speculative_sampling:draft=first:1"


@pytest.fixture(scope="module")
def target() -> Model:
    return tiny_decoder()


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
def test_a_rule_that_draws_for_itself_owes_the_distribution_and_not_the_text(
    target: Model, name: str, temperature: float, why: str
):
    assert not_compared(recipes.build(name, target), temperature) == why


def test_a_lossy_rule_owes_nothing_at_any_temperature(target: Model):
    recipe = replace(recipes.build("autoregressive", target), verifier=replace(Match(), lossless=False))
    assert not_compared(recipe, 0.0) == not_compared(recipe, 1.0) == "Match is LOSSY"

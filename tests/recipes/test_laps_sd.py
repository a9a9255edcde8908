"""laps_sd is another recipe with a scheduler of its own for each engine; it writes what that recipe writes."""

import pytest

from draftwood import recipes
from draftwood.engine.scheduler import FirstCome
from draftwood.engine.shortest_first import ShortestFirst
from draftwood.testing.runs import make_engine, serve
from ragged import PROMPTS, TARGET, check_same_text, params

INNER = "smart_spec:inner=speculative_sampling:draft=first:3"


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_plain_decodings_alone_and_in_a_ragged_batch(temperature: float) -> None:
    check_same_text(recipes.build("laps_sd", TARGET, inner=INNER, together=3), temperature)


def test_engines_of_one_recipe_have_schedulers_of_their_own() -> None:
    recipe = recipes.build("laps_sd", TARGET, inner="prompt_lookup", together=2, aging=3.0)
    first, second = make_engine(TARGET, recipe), make_engine(TARGET, recipe)
    assert isinstance(first.scheduler, ShortestFirst) and first.scheduler is not second.scheduler
    assert (first.scheduler.together, first.scheduler.aging) == (2, 3.0)
    plain = make_engine(TARGET, recipes.build("prompt_lookup", TARGET))
    assert isinstance(plain.scheduler, FirstCome)
    texts = [[r.output for r in serve(e, PROMPTS, params(0.0))] for e in (first, second, plain)]
    assert texts[0] == texts[1] == texts[2]


def test_drafts_are_those_of_the_recipe_it_names() -> None:
    named = recipes.build("laps_sd", TARGET, inner="prompt_lookup")
    plain = recipes.build("prompt_lookup", TARGET)
    assert (named.drafter, named.policy, named.verifier, named.controller) == (
        plain.drafter,
        plain.policy,
        plain.verifier,
        plain.controller,
    )

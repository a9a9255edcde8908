"""Layers in groups: fuzzy guesses, an exact cache, and the same text."""

from typing import Any

import pytest

import own_layers
from draftwood import recipes
from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import LayerPlan
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.route import Route
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.nothing import Nothing
from draftwood.errors import OptionError
from draftwood.recipes.easy_spec import grouped
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from own_layers import TARGETS

TARGET = tiny_runner(2)
PROMPTS = [([1 + i, 2, 3, 4] * 6)[: 6 + 2 * i] for i in range(8)]


def served(name: str, temperature: float) -> tuple[list[Request], Any]:
    engine = make_engine(TARGET, recipes.build(name, TARGET))
    each = [SamplingParams(seed=i, temperature=temperature, max_tokens=12) for i in range(8)]
    return serve(engine, PROMPTS, each), engine


def test_groups_leave_out_the_first_and_the_last_layer() -> None:
    assert grouped(10, 4).together == (range(1, 5), range(5, 9))
    assert grouped(11, 4).together == (range(1, 5), range(5, 9)), "a group of one is no group"
    assert grouped(9, 2).together == (range(1, 3), range(3, 5), range(5, 7))
    assert grouped(30, 1).together == grouped(3, 4).together == grouped(1, 4).together == ()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_the_text_is_that_of_plain_decoding(group: int, temperature: float) -> None:
    done, _ = served(f"easy_spec:draft=first:4:group={group}:size=paper", temperature)
    assert [r.output for r in done] == [r.output for r in served("autoregressive", temperature)[0]]
    assert {r.stats.disabled for r in done} == {None} and sum(sum(r.stats.accepted) for r in done) > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("target", TARGETS)
def test_the_text_is_that_of_plain_decoding_on_every_backend(target: str, temperature: float) -> None:
    """A group of two is run there as one batched product, or in one native call."""
    runner = TARGETS[target]()
    drafter = DraftModel(runner.first_layers(3), plan=LayerPlan(together=(range(1, 3),)))
    found, seen = own_layers.served(runner, drafter, temperature)
    right, _ = own_layers.served(runner, None, temperature)
    assert [r.output for r in found] == [r.output for r in right]
    print(target, temperature, dict(seen.rounds))
    assert min(seen.rounds[share] for share in ("all", "some", "none")) > 0


def test_a_group_of_one_is_the_plain_drafter_and_a_larger_one_drafts_something_else() -> None:
    alone = served("speculative_sampling:draft=first:4:depth=4:verifier=match", 0.0)[0]
    one, two = (served(f"easy_spec:draft=first:4:group={n}:size=paper", 0.0)[0] for n in (1, 2))
    assert [sum(r.stats.accepted) for r in one] == [sum(r.stats.accepted) for r in alone]
    assert sum(sum(r.stats.accepted) for r in two) < sum(sum(r.stats.accepted) for r in one)


def test_nothing_of_a_fuzzy_pass_stays_in_the_cache() -> None:
    """After a round the draft's cache is as a plain pass over the text would leave it."""
    engine = make_engine(TARGET, recipes.build("easy_spec:draft=first:4:group=2:size=paper", TARGET))
    exact = make_engine(TARGET, recipes.build("easy_spec:draft=first:4:group=1:size=paper", TARGET))
    for each in (engine, exact):
        request = Request(0, [1, 2, 3, 4], SamplingParams(max_tokens=12), TARGET.info.vocab_size)
        each.add(request)
        for _ in range(5):
            each.step()
    fuzzy, plain = (each.drafter_state.runner for each in (engine, exact))
    kept = min(fuzzy.length(0), plain.length(0))
    assert kept > 4
    for name in ("k1", "v1", "k2", "v3"):
        mine, other = (each.cache.store(name)[0, :, :kept] for each in (fuzzy, plain))
        assert (mine - other).abs().max() < 1e-12


def test_by_default_what_pays_is_drafted_and_the_banner_says_so() -> None:
    recipe: Any = recipes.build("easy_spec", TARGET)
    routed = isinstance(recipe.drafter, Route) and isinstance(recipe.controller, Priced)
    assert routed != (isinstance(recipe.drafter, Nothing) and recipe.controller == Fixed(0))
    assert "expected speed" in recipe.notes[0] and "size=paper" in recipe.notes[0]
    paper: Any = recipes.build("easy_spec:size=paper:depth=3", TARGET)
    assert isinstance(paper.drafter, DraftModel) and paper.controller == Fixed(3)
    for wrong in ({"group": 0}, {"draft": "first:9"}, {"verifier": "rejection"}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            recipes.build("easy_spec", TARGET, **wrong)

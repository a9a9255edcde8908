"""Copies that a model has reviewed change how fast a text is written, not the text."""

from typing import Any

import pytest

from device_runs import ran
from draftwood import recipes
from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.cascade import Cascade
from draftwood.drafters.combine.route import Route
from draftwood.errors import OptionError
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import tiny_decoder, tiny_runner
from draftwood.testing.runs import make_engine, serve

TARGET = tiny_runner(2)
PROMPTS = [([1 + i, 2, 3, 4] * 6)[: 6 + 2 * i] for i in range(8)]


def served(name: str, temperature: float) -> list[Request]:
    each = [SamplingParams(seed=i, temperature=temperature, max_tokens=12) for i in range(8)]
    return serve(make_engine(TARGET, recipes.build(name, TARGET)), PROMPTS, each)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "options", ["", ":first=3", ":first=3:then=4:min_match=1:lenience=9", ":draft=first:3:second=2:then=2"]
)
def test_the_text_is_that_of_plain_decoding(options: str, temperature: float) -> None:
    done = served(f"cascade_drafting{options}", temperature)
    assert [r.output for r in done] == [r.output for r in served("autoregressive", temperature)]
    assert {r.stats.disabled for r in done} == {None}
    drafted = sum(r.stats.draft_tokens for r in done)
    assert drafted > 0 or not options, "with a size it always drafts, without one where it pays"


def test_a_head_may_begin_the_chain_and_copies_go_on(tmp_path: Any) -> None:
    head = write_head(tmp_path / "head.safetensors", random_head("eagle3", TARGET))
    name = f"cascade_drafting:first=2:then=4:min_match=1:inner=eagle3:weights={head}"
    done = served(name, 0.0)
    assert [r.output for r in done] == [r.output for r in served("autoregressive", 0.0)]
    assert {r.stats.disabled for r in done} == {None}
    assert max(len(r.stats.drafted) for r in done) > 2, "deeper than the head"


def test_without_a_size_only_what_pays_is_drafted_and_the_banner_says_so() -> None:
    recipe: Any = recipes.build("cascade_drafting", TARGET)
    assert isinstance(recipe.drafter, Route) and isinstance(recipe.controller, Priced)
    assert "plain decoding where that pays more" in recipe.notes[0]
    reviewer: Any = recipe.drafter.model
    assert reviewer.drafters[0].model.info.num_layers == max(1, TARGET.info.num_layers // 3), "nothing ships for it"
    fixed: Any = recipes.build("cascade_drafting:then=4", TARGET)
    assert isinstance(fixed.drafter, Cascade) and isinstance(fixed.controller, Fixed)
    assert fixed.controller.depth == 9 and "whether it pays or not" in fixed.notes[1]


def test_options_become_the_matrix_of_counts() -> None:
    two: Any = recipes.build("cascade_drafting:first=4:then=6:copied=8:lenience=3", TARGET)
    assert two.drafter.counts == ((4, 6), (0, 8)) and two.drafter.lenience == 3
    three: Any = recipes.build("cascade_drafting:draft=first:3:first=4:second=2:then=6:copied=8", TARGET)
    assert three.drafter.counts == ((4, 2, 6), (0, 1, 8), (0, 0, 8)) and len(three.drafter.drafters) == 2
    for wrong in ({"first": -1}, {"lenience": 0.5}, {"min_match": 0}, {"second": 3}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            recipes.build("cascade_drafting", TARGET, **wrong)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("options", [":first=3:then=4:min_match=1", ":draft=first:3:first=2:second=2:then=2"])
def test_an_accelerator_drafts_the_same(options: str, temperature: float) -> None:
    texts, params = (
        [[1, 2, 3, 1, 2, 4 + i % 5, 1, 2] for i in range(8)],
        SamplingParams(seed=3, max_tokens=9, temperature=temperature),
    )
    model = tiny_decoder(2)
    here, there = (
        ran(target, lambda own: recipes.build(f"cascade_drafting{options}", own), texts, params)
        for target in (CpuRunner(model), CudaRunner(model))
    )
    assert (there.texts, there.accepted, there.disabled) == (here.texts, here.accepted, {None})

"""A target that skips some of its sub-layers to draft: options, notes, and the same text."""

from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.controllers.stopping.confidence import AdaptiveConfidence
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.route import Route
from draftwood.drafters.layers.skip_set import SkipSet, write_file
from draftwood.drafters.layers.skipped import SkippedLayers
from draftwood.drafters.nothing import Nothing
from draftwood.errors import OptionError
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.verifiers.rejection import Rejection

TARGET = tiny_runner(2)
PROMPTS = [([1 + i, 2, 3, 4] * 6)[: 6 + 2 * i] for i in range(8)]
SKIP = "skip=a1+m2"


def served(name: str, temperature: float) -> list[Request]:
    each = [SamplingParams(seed=i, temperature=temperature, max_tokens=12) for i in range(8)]
    return serve(make_engine(TARGET, recipes.build(name, TARGET)), PROMPTS, each)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("options", ["", ":depth=2", ":size=paper", ":size=paper:depth=3:wanted=0.5"])
def test_the_text_is_that_of_plain_decoding(options: str, temperature: float) -> None:
    done = served(f"draft_and_verify:{SKIP}{options}", temperature)
    assert [r.output for r in done] == [r.output for r in served("autoregressive", temperature)]
    assert {r.stats.disabled for r in done} == {None}
    assert sum(r.stats.draft_tokens for r in done) > 0 or "paper" not in options


def test_by_default_what_pays_is_drafted_and_the_banner_says_so() -> None:
    recipe: Any = recipes.build(f"draft_and_verify:{SKIP}", TARGET)
    routed = isinstance(recipe.drafter, Route) and isinstance(recipe.controller, Priced)
    assert routed != (isinstance(recipe.drafter, Nothing) and recipe.controller == Fixed(0))
    assert "leave out 2 of 8 sub-layers: " in recipe.notes[0] and "expected speed" in recipe.notes[0]
    paper: Any = recipes.build(f"draft_and_verify:{SKIP}:size=paper:wanted=0.7:verifier=rejection", TARGET)
    assert paper.controller == AdaptiveConfidence(8, wanted=0.7) and isinstance(paper.verifier, Rejection)
    assert "whether it pays or not" in paper.notes[0]


def test_sets_come_from_files_too_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    write_file(tmp_path / "skip.json", TARGET, SkipSet.of([2]), {})
    recipe: Any = recipes.build("draft_and_verify", TARGET, skip=str(tmp_path / "skip.json"), size="paper")
    assert recipe.drafter == SkippedLayers(SkipSet.of([2]))
    for wrong, message in (
        ("auto", "no set of skipped layers ships"),
        ("a9", "not among the target's 4"),
        ("a0+a1+a2+a3+m0+m1+m2+m3", "leaves nothing"),
        ("a1+x2", "is no sub-layer"),
        ("nowhere.json", "cannot be read"),
    ):
        with pytest.raises(OptionError, match=message):
            recipes.build("draft_and_verify", TARGET, skip=wrong)
    with pytest.raises(OptionError, match="wanted"):
        recipes.build("draft_and_verify", TARGET, skip="a1", wanted=0.5)

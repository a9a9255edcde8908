"""EESD: a decoder layer behind the target's first layers drafts until a coin of Thompson sampling ends it."""

from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.controllers.stopping.thompson import BetaThompson, CalibratedThompson
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.route import Route
from draftwood.drafters.layers.early_exit import EarlyExit
from draftwood.drafters.nothing import Nothing
from draftwood.errors import CompositionError, DraftwoodError, OptionError
from draftwood.testing.parts.heads import write_head
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.verifiers.rejection import Rejection
from own_layers import exit_head

TARGET = tiny_runner(2)
PROMPTS = [([1 + i, 2, 3, 4] * 6)[: 6 + 2 * i] for i in range(8)]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("weights")
    return str(write_head(folder / "eesd.safetensors", exit_head(TARGET, "exit_layer")))


def served(name: str, temperature: float) -> list[Request]:
    each = [SamplingParams(seed=i, temperature=temperature, max_tokens=12) for i in range(8)]
    return serve(make_engine(TARGET, recipes.build(name, TARGET)), PROMPTS, each)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("options", ["", ":depth=2", ":size=paper", ":size=paper:depth=3:stop=calibrated"])
def test_the_text_is_that_of_plain_decoding(weights: str, options: str, temperature: float) -> None:
    done = served(f"eesd:weights={weights}{options}", temperature)
    assert [r.output for r in done] == [r.output for r in served("autoregressive", temperature)]
    assert {r.stats.disabled for r in done} == {None}
    assert sum(r.stats.draft_tokens for r in done) > 0 or "paper" not in options


def test_by_default_what_pays_is_drafted_and_the_banner_says_so(weights: str) -> None:
    recipe: Any = recipes.build("eesd", TARGET, weights=weights)
    routed = isinstance(recipe.drafter, Route) and isinstance(recipe.controller, Priced)
    assert routed != (isinstance(recipe.drafter, Nothing) and recipe.controller == Fixed(0))
    assert "leave after 3 of 4 layers: " in recipe.notes[0] and "expected speed" in recipe.notes[0]
    paper: Any = recipes.build("eesd:size=paper:verifier=rejection", TARGET, weights=weights)
    assert isinstance(paper.drafter, EarlyExit) and isinstance(paper.verifier, Rejection)
    assert paper.controller == BetaThompson(8) and "whether it pays or not" in paper.notes[0]
    other: Any = recipes.build("eesd:size=paper:stop=calibrated:depth=5", TARGET, weights=weights)
    assert other.controller == CalibratedThompson(5)


def test_weights_of_another_kind_and_misplaced_options_are_refused(weights: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"(?s)no weights of kind 'exit_layer' ship.*draftwood train eesd"):
        recipes.build("eesd", TARGET)
    other = write_head(tmp_path / "other.safetensors", exit_head(TARGET, "exit"))
    with pytest.raises(CompositionError, match="holds weights of kind 'exit'"):
        recipes.build("eesd", TARGET, weights=str(other))
    for wrong in ({"stop": "calibrated"}, {"verifier": "rejection"}, {"depth": -1}):
        with pytest.raises(DraftwoodError, match=next(iter(wrong))):
            recipes.build("eesd", TARGET, weights=weights, **wrong)

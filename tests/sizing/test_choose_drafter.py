"""Which drafter is chosen by default: the fastest drafter that ships and fits, else the target's first layers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.core.legal_draws import Draw
from draftwood.drafters.combine.followed import Followed
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.phrases.lengthened import Lengthened
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.drafters.superposed.drafter import Superposed
from draftwood.errors import CompositionError, OptionError
from draftwood.sizing import choose_drafter, remembered
from draftwood.sizing.choose_size import Choice
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from tree_recipes import TARGET, same_as_plain

# cascade_drafting needs a drafter that reviews copies and chooses it itself: tests/recipes/test_cascade_drafting.py. The
# nets of the others were trained for one drafter, so they name it.
NAMED = ("cascade_drafting", "ada_eagle", "specdec_pp", "laps_sd")
OPEN = [name for name in recipes.names() if "inner" in recipes.options(name) and name not in NAMED]


@pytest.mark.parametrize("name", OPEN)
def test_a_recipe_with_an_inner_one_leaves_it_open(name: str) -> None:
    assert recipes.options(name)["inner"].default == "auto"


@pytest.mark.parametrize("name", [name for name in OPEN if name not in ("vocab_trim", "fr_spec", "dynamic_mcsd")])
def test_without_a_trained_drafter_the_first_layers_draft_and_the_notes_say_it(name: str) -> None:
    recipe: Any = recipes.build(name, TARGET)
    lent = recipe.drafter
    if isinstance(lent, Lengthened | Superposed):
        lent = lent.inner if isinstance(lent, Lengthened) else lent.model
    elif isinstance(lent, Followed):
        lent = lent.drafter
    assert isinstance(lent, DraftModel)
    assert lent.model.info.num_layers == max(1, TARGET.info.num_layers // 3)
    assert "first 1 of" in recipe.notes[0] and "draftwood train eagle3" in recipe.notes[0]
    assert same_as_plain(name) >= 0


@pytest.mark.parametrize("layers", [1, 2, 3, 7, 30])
def test_the_number_of_layers_follows_the_target(layers: int) -> None:
    ((name, _),) = choose_drafter.candidates(
        tiny_runner(config=replace(CONFIG, num_layers=layers)), lambda name: Nothing()
    )
    assert name == f"speculative_sampling:draft=first:{max(1, layers // 3)}"


@pytest.mark.parametrize(
    ("speeds", "first"),
    [((1.3, 1.2), "eagle3"), ((1.2, 1.3), "eagle3"), ((1.0, 1.4), "fast_draft")],
)
def test_the_fastest_trained_drafter_comes_first(monkeypatch: Any, speeds: tuple[float, float], first: str) -> None:
    ship(monkeypatch, dict(zip(choose_drafter.TRAINED, speeds, strict=True)))
    names = [name for name, _ in choose_drafter.candidates(tiny_runner(), lambda name: Nothing())]
    assert names[0] == first and len(names) == 3
    (_, note), *_ = choose_drafter.candidates(tiny_runner(), lambda name: Nothing())
    assert note.startswith(f"drafter: {first}, which ships")


def test_the_choice_is_kept_so_that_a_seed_gives_the_same_text_tomorrow(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr(remembered, "fingerprint", lambda target: "0123")
    first = []
    for speeds in ((1.0, 1.4), (1.4, 1.0)):  # another moment, other times
        ship(monkeypatch, dict(zip(choose_drafter.TRAINED, speeds, strict=True)))
        first.append(choose_drafter.candidates(tiny_runner(), lambda name: Nothing())[0][0])
    assert first == ["fast_draft", "fast_draft"]
    for file in tmp_path.glob("drafter/*"):
        file.write_text('{"found": "nonsense"}')
    assert choose_drafter.candidates(tiny_runner(), lambda name: Nothing())[0][0] == "eagle3"


def test_a_drafter_that_does_not_fit_is_passed_over(monkeypatch: Any) -> None:
    lent = {"eagle3": NGram(), "fast_draft": Nothing()}
    monkeypatch.setattr(recipes, "candidates", lambda target, lend: [(name, name) for name in lent])
    real = recipes.drafter

    def drafter(name: str, target: Any, draws: frozenset[Draw] = frozenset()) -> Any:
        return lent[name] if name in lent else real(name, target, draws)

    monkeypatch.setattr(recipes, "drafter", drafter)
    monkeypatch.setattr(recipes, "slowness_notes", lambda *parts: ())
    assert recipes.build("mcsd", TARGET).notes == ("fast_draft",)
    assert recipes.build("opt_tree", TARGET).notes == ("eagle3",), "given draws are all that it needs"
    assert isinstance(real("auto", TARGET, frozenset({Draw.IID})), Nothing)
    lent.pop("fast_draft")
    with pytest.raises(CompositionError, match="NGram supplies given"):
        recipes.build("mcsd", TARGET)


def test_a_named_draft_takes_the_place_of_the_choice() -> None:
    assert recipes.build("speculative_sampling", TARGET, draft="first:2").notes == ()
    with pytest.raises(OptionError, match="draft 'first:1' and inner 'auto' exclude each other"):
        recipes.build("speculative_sampling", TARGET, draft="first:1", inner="auto")


@pytest.mark.parametrize(
    ("greedy", "sampled", "said"),
    [
        (0.7, 0.6, "slower than plain decoding here: expected speed 0.70x plain decoding, 0.60x at temperature 1"),
        (1.2, 0.8, "slower than plain decoding at temperature 1: expected speed 0.80x there, 1.20x at 0"),
        (1.2, 1.1, ""),
        (None, None, ""),
    ],
)
def test_a_tree_that_costs_more_than_it_gains_is_warned_of(
    monkeypatch: Any, greedy: float | None, sampled: float | None, said: str
) -> None:
    def gain(name: str, target: Any, recipe: Any, temperature: float = 0.0) -> float | None:
        return sampled if temperature else greedy

    monkeypatch.setattr(choose_drafter, "gain", gain)
    found = choose_drafter.slowness_notes(recipes.build("autoregressive", TARGET), "eagle3", TARGET)
    assert bool(found) == bool(said) and all(said in each for each in found)


def ship(monkeypatch: Any, speeds: dict[str, float]) -> None:
    """As if these drafters shipped for every target and were that fast."""
    monkeypatch.setattr(choose_drafter, "ships", lambda kind, target: True)
    monkeypatch.setattr(choose_drafter, "worth", lambda name, target, drafter: Choice((1, 1), speeds[name]))

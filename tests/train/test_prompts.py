"""Prompts are varied, the same for the same seed, and never mix the two sides."""

import random

import pytest

from draftwood.train.prompts import MADE, OVER_TEXT, Prompts, held_out
from draftwood.train.texts import Passage, Texts

PASSAGES = tuple(
    Passage(f"The mill of {name} was built in {year}. It grinds corn for the valley. The valley needs corn.")
    for name in ("Anna", "Boris", "Clara", "Dora", "Emil")
    for year in range(1700, 1760)
)
CODE = tuple(
    Passage(f"def f{i}(x):\n    y = x + {i}\n    z = {{y}}\n\n    w = 1\n    return z", True, "Python")
    for i in range(90)
)
OWN = "Tea is a drink made from leaves. It came from China.\n\nIt is drunk hot or cold. Many people add milk to it."


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return Prompts(Texts(1, PASSAGES + CODE, ("Mill Valley", "Anna"), 400))


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("texts", [True, False])
def test_prompts_of_every_kind_are_varied_and_repeatable(prompts: Prompts, kind: str, texts: bool):
    source = prompts if texts else Prompts(Texts())

    def turns(own: str | None) -> list[str]:
        made = [source.make(kind, random.Random(i), own) for i in range(200)]
        return [prompt.turn for prompt in made if prompt is not None and prompt.kind == kind]

    own = OWN if kind in OVER_TEXT and not texts else None
    found = turns(own)
    assert found == turns(own) and len(found) == 200
    assert len(set(found)) > (150 if own is None else 20)
    assert (
        not any(mark in turn for turn in found for mark in ("{text}", "{term}", "{language}", "{name}", "{task}", "  "))
        or kind == "code"
    )


@pytest.mark.parametrize("kind", OVER_TEXT)
def test_without_texts_there_is_nothing_to_ask_about_but_foreign_sentences(kind: str):
    made = Prompts(Texts()).make(kind, random.Random(0))
    assert made is None if kind != "translation" else made is not None and not made.language


def test_passages_of_the_two_sides_never_meet(prompts: Prompts):
    sides = {p.text: held_out(p.text) for p in PASSAGES}
    assert 0 < sum(sides.values()) < len(sides) / 10
    seen = set()
    for i in range(2000):
        prompt = prompts.make("extraction", random.Random(i))
        assert prompt is not None
        inside = {side for text, side in sides.items() if text in prompt.turn}
        assert inside == {prompt.held}
        seen.add(prompt.held)
    assert seen == {False, True}


def test_braces_of_a_passage_stay_as_they_are(prompts: Prompts):
    turns = [made.turn for i in range(200) if (made := prompts.make("code", random.Random(i))) is not None]
    assert any("z = {y}" in turn for turn in turns)


def test_way_back_names_the_language(prompts: Prompts):
    there = next(
        p for i in range(99) if (p := prompts.make("translation", random.Random(i))) is not None and p.language
    )
    back = prompts.back(random.Random(0), there, "Guten Tag.")
    assert "Guten Tag." in back.turn and "English" in back.turn and back.held == there.held

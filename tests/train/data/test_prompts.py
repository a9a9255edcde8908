"""Prompts are varied, the same for the same seed, and never mix the two sides."""

import random
from itertools import pairwise

import pytest

from draftwood.train.data.passages import Passage, Texts
from draftwood.train.data.prompts import MADE, OVER_TEXT, Prompts, held_out

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
    assert len(set(found)) > (120 if own is None else 20)
    assert (
        not any(mark in turn for turn in found for mark in ("{text}", "{term}", "{language}", "{name}", "{task}", "  "))
        or kind == "code"
    )


@pytest.mark.parametrize("kind", OVER_TEXT)
def test_without_texts_there_is_nothing_to_ask_about(kind: str):
    assert Prompts(Texts()).make(kind, random.Random(0)) is None


@pytest.mark.parametrize("kind", ["extraction", "retrieval", "summary"])
def test_held_out_passages_and_others_are_never_in_one_prompt(prompts: Prompts, kind: str):
    sides = {p.text: held_out(p.text) for p in PASSAGES}
    assert 0 < sum(sides.values()) < len(sides) / 10
    seen = set()
    for i in range(2000):
        prompt = prompts.make(kind, random.Random(i))
        assert prompt is not None
        inside = {side for text, side in sides.items() if text in prompt.turn}
        assert inside == {prompt.held}
        seen.add(prompt.held)
    assert seen == {False, True}


def test_braces_of_a_passage_stay_as_they_are(prompts: Prompts):
    turns = [made.turn for i in range(200) if (made := prompts.make("code", random.Random(i))) is not None]
    assert any("z = {y}" in turn for turn in turns)


FILES = tuple(
    Passage(f"File {file} says in part {part} that rivers run to the sea. " * 6, file=file)
    for file in range(20)
    for part in range(8)
)


def test_some_summaries_are_over_passages_that_follow_each_other_in_one_file():
    source = Prompts(Texts(20, FILES, (), 1800))
    turns = [made.turn for i in range(200) if (made := source.make("summary", random.Random(i))) is not None]
    parts = [sorted({(p.file, n) for n, p in enumerate(FILES) if p.text.strip() in turn}) for turn in turns]
    assert all(len({file for file, _ in found}) == 1 for found in parts)
    assert all(b[1] - a[1] <= 2 for found in parts for a, b in pairwise(found))
    long = [turn for turn, found in zip(turns, parts, strict=True) if len(found) > 2]
    assert 0.3 < len(long) / len(turns) < 0.7 and all(700 < len(turn) < 2100 for turn in long)


def test_sentences_of_other_languages_go_into_english():
    source = Prompts(Texts())
    turns = {source.into_english(random.Random(i)).turn for i in range(300)}
    assert len(turns) > 280 and all("English" in turn or "I received this message" in turn for turn in turns)
    german = "Der Hund ist nicht mit dem Kind auf die Wiese gegangen und hat sich dort einen Stock geholt."
    mine = Prompts(Texts(1, (Passage(german * 3, language="German"), *PASSAGES), (), 400))
    found = [mine.into_english(random.Random(i)) for i in range(100)]
    assert 50 < sum("Der Hund" in p.turn and "Spanish" not in p.turn for p in found) < 90
    for kind in OVER_TEXT:
        assert not any("Der Hund" in p.turn for i in range(99) if (p := mine.make(kind, random.Random(i))) is not None)


def test_target_is_asked_for_articles_and_entries():
    source = Prompts(Texts())
    first = [source.first("summary", random.Random(i)) for i in range(200)]
    assert 100 < sum(p is not None and p.times > 1 and p.kind == "chat" for p in first) < 190
    assert source.first("extraction", random.Random(0)) is None
    entries = [source.entry(random.Random(i)) for i in range(200)]
    assert all(p.title and p.title in p.turn and p.kind == "question" for p in entries)
    assert len({p.turn for p in entries}) > 150
    spoken = [source.in_language(random.Random(i)) for i in range(50)]
    assert all(p.language in p.turn and p.kind == "translation" for p in spoken)


def test_way_back_names_the_language(prompts: Prompts):
    there = next(
        p for i in range(99) if (p := prompts.make("translation", random.Random(i))) is not None and p.language
    )
    back = prompts.back(random.Random(0), there, "Guten Tag.")
    assert "Guten Tag." in back.turn and "English" in back.turn and back.held == there.held

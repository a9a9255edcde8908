"""Filled templates are whole and varied, fit their subject and language, and depend on the seed alone."""

import hashlib
import random
import re
from collections.abc import Iterator

import pytest

from draftwood.train.data.passages import Passage, Texts, language_of
from draftwood.train.data.prompts import MADE, OVER_TEXT, Prompts
from draftwood.train.data.retrieval_prompts import Document
from draftwood.train.data.templates import LANGUAGES, corpus, fact_question, foreign_sentence, subject, word_problem

SENTENCES = [foreign_sentence(random.Random(i)) for i in range(3000)]
OWN = "Tea is a drink made from leaves. It came from China.\n\nIt is drunk hot or cold. Many people add milk to it."
PROSE = tuple(
    Passage(f"The mill of {name} was built in {year}. It grinds corn for the valley. The valley needs corn.", file=year)
    for name in ("Anna", "Boris", "Clara")
    for year in range(1700, 1760)
)
CODE = tuple(
    Passage(f"def f{i}(x):\n    y = x + {i}\n    z = {{y}}\n\n    w = 1\n    return z", True, "Python")
    for i in range(90)
)
DOCUMENTS = [Document(text, title) for text, title in ((OWN, "tea"), ("Snow is cold. It falls in winter.", "snow"))]


def turns(count: int) -> Iterator[str]:
    """Prompts of every kind and from every source."""
    bare, full = Prompts(Texts()), Prompts(Texts(1, PROSE + CODE, ("Mill Valley", "Anna"), 400))
    for i in range(count):
        rng = random.Random(f"corpus:{i}")
        for source in (bare, full):
            made = [source.make(kind, rng, OWN if kind in OVER_TEXT and source is bare else None) for kind in MADE]
            made += [source.first("summary", rng), source.entry(rng), source.into_english(rng), source.in_language(rng)]
            made += [source.ask(rng, DOCUMENTS[0], False), source.retrieve(rng, DOCUMENTS, i % 2, False)]
            yield from (prompt.turn for prompt in made if prompt is not None)


def digest(texts: Iterator[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def test_a_seed_makes_the_same_prompts_in_every_version():
    """Data sets are continued by later versions, and their prompts must not change."""
    assert digest(turns(400)) == "d34a7056b94595a27f2dc6b033f58e7780bc1ad5a85ebe845852a607e24759a5"


def test_one_word_less_in_a_corpus_would_be_noticed(monkeypatch):
    before = digest(turns(40))
    monkeypatch.setitem(corpus("wordings"), "topics", corpus("wordings")["topics"][1:])
    assert digest(turns(40)) != before


def test_every_kind_of_subject_has_questions():
    for kind in corpus("facts")["kinds"].values():
        questions, names = kind["questions"], kind["names"]
        assert all("{x}" in q and q.endswith("?") for q in questions) and len(set(questions)) == len(questions) >= 7
        assert len(set(names)) == len(names) >= 14


def test_questions_are_varied_and_whole():
    found = [fact_question(random.Random(i)) for i in range(2000)]
    assert len(set(found)) > 1700 and not any("{" in q or "  " in q for q in found)
    typed = [q for q in found if not q[0].isupper()]
    assert 0.3 < len(typed) / len(found) < 0.5 and not any("?" in q for q in typed)
    assert all("?" in q for q in found if q[0].isupper())


def test_subjects_can_be_written_about():
    found = {subject(random.Random(i)) for i in range(2000)}
    assert len(found) > 250 and "the hedgehog" in found and "Norway" in found


def test_word_problems_are_varied_and_whole():
    found = [word_problem(random.Random(i)) for i in range(2000)]
    assert len(corpus("word_problems")["problems"]) >= 15 and len(set(found)) > 1900
    for text in found:
        assert (text[0].isupper() or text[0].isdigit()) and text[-1] in ".?" and len(re.findall(r"\d+", text)) >= 2
        assert "{" not in text and "  " not in text


def test_every_slot_of_a_foreign_sentence_has_words():
    numbers = {"n", "few", "percent", "year", "century"}
    for language, slots in corpus("sentences").items():
        used = {slot for texts in slots.values() for text in texts for slot in re.findall(r"\{(\w+)\}", text)}
        assert used - numbers == set(slots) - {"forms"}, language


def test_foreign_sentences_are_whole_and_varied():
    assert len({text for _, text in SENTENCES}) > 2400
    for _, text in SENTENCES:
        assert "{" not in text and "  " not in text and text[-1] in ".?"
        assert re.sub(r"^\W*", "", text)[0].isupper()
    assert 0.5 < sum(language == "German" for language, _ in SENTENCES) / len(SENTENCES) < 0.65


@pytest.mark.parametrize("language", LANGUAGES)
def test_foreign_sentence_is_in_its_language(language: str):
    """By its common words: mostly recognised, hardly ever taken for another language."""
    told = [language_of(text) for said, text in SENTENCES if said == language and len(text) > 90]
    assert sum(name == language for name in told) > 0.5 * len(told)
    wrong = [name for name in told if name not in ("", language)]
    assert len(wrong) < 0.05 * len(told), wrong

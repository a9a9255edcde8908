"""Sentences of other languages are whole, varied, and in the language they say."""

import random
import re

import pytest

from draftwood.train.data.texts import language_of
from draftwood.train.data.translations import FORMS, LANGUAGES, sentence

FOUND = [sentence(random.Random(i)) for i in range(3000)]


def test_every_language_has_forms_and_every_slot_is_known():
    assert set(FORMS) == set(LANGUAGES)
    numbers = {"n", "few", "percent", "year", "century"}
    for language, slots in FORMS.items():
        used = {slot for texts in slots.values() for text in texts for slot in re.findall(r"\{(\w+)\}", text)}
        assert used - numbers == set(slots) - {"forms"}, language


def test_sentences_are_whole_and_varied():
    assert len({text for _, text in FOUND}) > 2400
    for _, text in FOUND:
        assert "{" not in text and "  " not in text and text[-1] in ".?"
        assert re.sub(r"^\W*", "", text)[0].isupper()
    assert 0.5 < sum(language == "German" for language, _ in FOUND) / len(FOUND) < 0.65


@pytest.mark.parametrize("language", LANGUAGES)
def test_language_is_the_one_that_is_said(language: str):
    """As far as common words tell: never another one, and mostly known."""
    told = [language_of(text) for said, text in FOUND if said == language and len(text) > 90]
    assert sum(name == language for name in told) > 0.5 * len(told)
    wrong = [name for name in told if name not in ("", language)]
    assert len(wrong) < 0.05 * len(told), wrong

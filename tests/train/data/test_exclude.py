"""Thirteen tokens in a row of a question are too many, twelve are not."""

import gzip
import hashlib
import json

import numpy as np
import pytest

from draftwood.errors import OptionError
from draftwood.models.loading.load import Loaded
from draftwood.train.data.exclude import WINDOW, Exclusion, read_exclusion, windows_of

QUESTION = "How many letters does this question have?"


@pytest.fixture
def exclusion(tmp_path, tiny: Loaded) -> Exclusion:
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps({"turns": [QUESTION, "Why so?"]}) + "\n")
    return read_exclusion([file], tiny.tokenizer)


@pytest.mark.parametrize(("start", "count", "caught"), [(0, 13, True), (9, 13, True), (9, 12, False), (28, 13, True)])
def test_a_run_of_thirteen_is_found_wherever_it_stands(exclusion: Exclusion, tiny: Loaded, start, count, caught):
    run = tiny.tokenizer.encode(QUESTION)[start : start + count]
    for before, after in ((0, 0), (3, 40), (200, 0)):
        noise = np.random.default_rng(0).integers(128, 256, before + after).tolist()
        assert exclusion.overlaps(noise[:before] + run + noise[before:]) is caught


def test_short_question_is_known_by_its_words(exclusion: Exclusion):
    assert (
        exclusion.is_question("why  SO") and exclusion.is_question(QUESTION) and not exclusion.is_question("Why not?")
    )


def test_nothing_excluded_hits_nothing():
    assert not Exclusion().overlaps(list(range(100))) and not Exclusion().is_question("")


def test_the_same_tokens_in_another_order_do_not_overlap():
    found = Exclusion(frozenset(windows_of(np.arange(WINDOW))))
    assert found.overlaps(np.arange(WINDOW)) and not found.overlaps(np.arange(WINDOW)[::-1])


def test_files_are_recorded_by_name_and_checksum(tmp_path, tiny: Loaded):
    file = tmp_path / "q.jsonl.gz"
    with gzip.open(file, "wt") as stream:
        stream.write('{"prompt": "def f(x): return x + 1"}\n\n')
    found = read_exclusion([file], tiny.tokenizer)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert found.files == ({"name": "q.jsonl.gz", "sha256": digest, "questions": 1},)
    assert found.overlaps(tiny.tokenizer.encode("so: def f(x): return"))


@pytest.mark.parametrize("text", ["", "{}", "x", '{"turns": "a"}', '{"prompt": 3}'])
def test_question_that_cannot_be_read_is_refused(tmp_path, tiny: Loaded, text):
    (tmp_path / "q.jsonl").write_text(text)
    with pytest.raises(OptionError, match=r"q\.jsonl"):
        read_exclusion([tmp_path / "q.jsonl"], tiny.tokenizer)

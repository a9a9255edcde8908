"""Tokens per second of recipes over plain decoding, from runs of the same prompts."""

from pathlib import Path

import pytest

from draftwood.bench.gpu.texts import Case, Run, measure, speed
from draftwood.models.loading.load import load
from draftwood.testing.folder import write_folder


def test_a_speed_is_over_plain_decoding_of_the_same_turns() -> None:
    plain = [Run(2.0, 100, 100), Run(2.0, 100, 100), Run(2.0, 100, 100)]
    fast = [Run(1.0, 100, 25), Run(1.0, 100, 25), Run(0.5, 100, 50)]
    found = speed(Case("eagle3", 1, "named"), fast, plain)
    assert (found.recipe, found.tokens_per_second, found.tokens_per_pass) == ("named", 100.0, 3.0)
    assert found.over_plain is not None and found.over_plain.value == pytest.approx(400 / 150)
    assert speed(Case("autoregressive", 1), plain, plain).over_plain is None


def test_answers_have_the_length_that_was_asked_for(tmp_path: Path) -> None:
    loaded = load(str(write_folder(tmp_path)), dtype="float32")
    cases = [Case(name, batch) for batch in (1, 2) for name in ("autoregressive", "suffix_decoding:nodes=4")]
    told: list[tuple[int, int]] = []
    found = measure(loaded, cases, max_tokens=4, repeats=2, say=lambda done, total: told.append((done, total)))
    assert [(row.recipe, row.batch) for row in found] == [(case.recipe, case.batch) for case in cases]
    assert all(row.tokens_per_second > 0 and row.tokens_per_pass >= 0.8 for row in found), found
    assert told[-1] == (6, 6)

"""Predictions are the plain answers with known changes, and the answers stay plain."""

from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest

from draftwood.bench.study import edits
from draftwood.bench.study.edits import PROMPTS, Row, Setting, edited, measure
from draftwood.core.sampling.params import SamplingParams
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded, load
from draftwood.testing.folder import write_folder

TEXT = "\n".join(f"line {i} has the words number {i * i} and {'some ' * (i % 4)}more of them" for i in range(60))


def changed(text: str) -> tuple[float, float]:
    """Share of the words that the edited text lacks, and that only it has."""
    a, b = TEXT.split(), text.split()
    same = sum(block.size for block in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks())
    return 1 - same / len(a), 1 - same / len(b)


@pytest.mark.parametrize("rate", [0.05, 0.15, 0.3])
def test_about_as_many_words_change_as_are_asked_for(rate: float) -> None:
    found = [changed(edited(TEXT, rate, seed)) for seed in range(10)]
    for shares in zip(*found, strict=True):
        assert 0.4 * rate < sum(shares) / len(shares) < 1.6 * rate


def test_edits_depend_on_the_seed_alone_and_rate_zero_changes_nothing() -> None:
    assert edited(TEXT, 0.0) == TEXT
    assert edited(TEXT, 0.3, 1) == edited(TEXT, 0.3, 1) != edited(TEXT, 0.3, 2)
    assert edited("", 0.3) == "" and edited("one", 1.0, 3) != "one two"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(write_folder(tmp_path_factory.mktemp("model"))))


def rows(loaded: Loaded, *names: str, temperature: float = 0.0) -> list[Row]:
    params = SamplingParams(max_tokens=20, temperature=temperature, seed=1, ignore_eos=True)
    return list(measure(loaded, names, Setting(PROMPTS[:2], (0.0, 0.3), params)))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_recipe_is_measured_at_every_rate_on_the_same_answers(loaded: Loaded, temperature: float) -> None:
    found = rows(loaded, "prediction:nodes=8", "autoregressive", temperature=temperature)
    assert [(row.recipe, row.rate) for row in found] == [
        (name, rate) for name in ("prediction:nodes=8", "autoregressive") for rate in (0.0, 0.3)
    ]
    assert {(row.answers, row.identical, row.tokens, row.good) for row in found} == {(2, 2, 40, True)}
    assert {row.tokens_per_pass for row in found[2:]} == {1.0} and {sum(row.rounds) for row in found[2:]} == {0}
    assert all(row.accepted == row.rejected == 0 < row.predicted for row in found[2:])
    assert all(row.tokens_per_pass > 1 and row.accepted + row.rejected > 0 for row in found[:2])


def test_an_answer_that_changed_is_found(loaded: Loaded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Spoiled(LLM):
        def chat(self, messages: Any, *words: Any, **options: Any) -> Any:
            found = super().chat(messages, *words, **options)
            if isinstance(found, list):
                return found
            return replace(
                found, token_ids=(*found.token_ids[:3], (found.token_ids[3] + 1) % 250, *found.token_ids[4:])
            )

    monkeypatch.setattr(edits, "LLM", Spoiled)
    found = rows(loaded, "prediction:nodes=8")
    assert not any(row.good for row in found) and found[0].wrong[0][1].position == 3

"""draftwood bench quality from the command line, on a model that fits on a page."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from draftwood.cli.main import app
from draftwood.models.backends import int8_weights
from draftwood.models.backends.choose import int8_decoder, open_library
from draftwood.models.loading import load as loading
from draftwood.testing.folder import write_folder

LIMITS = ("--max-perplexity", "1.2", "--min-agreement", "0.7")  # random weights of few columns round badly


@pytest.fixture
def quality(tmp_path: Path) -> Any:
    folder = write_folder(tmp_path / "model")
    base = ["bench", "quality", "--model", str(folder), "--count", "4", "--max-tokens", "24"]
    return lambda *words: CliRunner().invoke(app, [*base, *words])


def spoil(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the int8 backend has one layer whose weights are 1.3 times too large."""
    honest = loading.load

    def load(name: str, *, dtype: str, device: Any) -> loading.Loaded:
        loaded = honest(name, dtype=dtype, device=device)
        if dtype == "float32":
            return loaded
        config, tensors, _ = loading.load_weights(name)
        wrong = {n: 1.3 * t if n.startswith("model.layers.1.") and t.ndim == 2 else t for n, t in tensors.items()}
        return replace(loaded, model=int8_decoder(config, int8_weights.from_tensors(config, wrong)))

    monkeypatch.setattr(loading, "load", load)


def test_a_good_backend_is_told_by_kind_of_text_and_saved(quality, tmp_path: Path):
    out = tmp_path / "q.json"
    done = quality(*LIMITS, "--out", str(out))
    assert done.exit_code == 0, done.output
    assert "every token of the answers" in done.stdout and '"commit"' in done.stdout
    assert open_library() is None or ", weights in Q8_0 against float32" in done.stdout
    assert "float32 wrote 4/4 answers" in done.stderr and "4/4 texts" in done.stderr
    result = json.loads(out.read_text())
    assert [row["kind"] for row in result["rows"]] == ["greedy", "sampled", "overall"]
    assert result["provenance"]["backend"].startswith("int8") and result["misses"] == []
    assert result["rows"][2]["positions"] == result["rows"][0]["positions"] + result["rows"][1]["positions"]


def test_a_spoiled_backend_is_status_one(quality, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    spoil(monkeypatch)
    out = tmp_path / "q.json"
    done = quality(*LIMITS, "--out", str(out))
    assert done.exit_code == 1 and "NOT GOOD ENOUGH\nperplexity is" in done.stdout
    assert len(json.loads(out.read_text())["misses"]) == 2


def test_both_models_run_where_the_backend_does(quality, monkeypatch: pytest.MonkeyPatch):
    """int8 runs on the CPU even where there is a GPU, so the reference does too."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    done = quality(*LIMITS, "--dtype", "int8")
    assert done.exit_code == 0 and '"device": "cpu"' in done.stdout, done.output


def test_limits_are_the_callers(quality):
    done = quality("--max-perplexity", "0.5", "--min-agreement", "0")
    assert done.exit_code == 1 and "at most 0.5 is allowed" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dtype", "float32"], "float32 is the reference itself"),
        (["--out", "nowhere/q.json"], "no folder"),
        (["--count", "1"], "count"),
        (["--min-agreement", "98"], "agreement"),
    ],
)
def test_mistakes_are_found_before_anything_is_loaded(quality, words, said: str):
    done = quality(*words)
    assert done.exit_code == 2 and said in done.stderr

"""draftwood bench edits from the command line, on a model that fits on a page."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood.bench.study import edits
from draftwood.cli.main import app


def bench(folder: Path, *words: str) -> Any:
    base = [
        "bench",
        "edits",
        "--model",
        str(folder),
        "--max-tokens",
        "12",
        "--recipes",
        "prediction:nodes=8,autoregressive",
    ]
    return CliRunner().invoke(app, [*base, *words])


def test_rows_are_printed_and_saved(folder: Path, tmp_path: Path) -> None:
    questions, out = tmp_path / "q.jsonl", tmp_path / "out.json"
    questions.write_text('{"turns": ["abc"]}\n{"turns": ["some text"]}\n')
    done = bench(folder, "--rates", "0,30", "--questions", str(questions), "--out", str(out))
    assert done.exit_code == 0, done.output
    assert "2 questions, 12 tokens, temperature 0" in done.stdout and "the model's own plain answer" in done.stdout
    found = json.loads(out.read_text())["rows"]
    assert [(row["recipe"], row["rate"]) for row in found] == [
        (name, rate) for name in ("prediction:nodes=8", "autoregressive") for rate in (0.0, 0.3)
    ]


def test_a_changed_text_is_status_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edits.Row, "good", property(lambda row: row.recipe == "autoregressive"))
    done = bench(folder, "--rates", "0")
    assert done.exit_code == 1 and "NOT EXACT, or the drafter was disabled: prediction:nodes=8 at 0%" in done.stdout


@pytest.mark.parametrize("rates", ["", "x", "-1", "0,101"])
def test_senseless_rates_are_refused(folder: Path, rates: str) -> None:
    done = bench(folder, "--rates", rates)
    assert done.exit_code == 2 and "rates cannot be" in done.stderr

"""draftwood bench engine from the command line, on a model that fits on a page."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood.bench import other_processes
from draftwood.cli.main import app
from draftwood.testing.folder import write_folder


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(other_processes, "look", lambda: {"load": [0.0], "foreign_cores": 0.0, "busiest": []})
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("one one", "two", "three")))
    base = ["bench", "engine", "--questions", str(file), "--model", str(write_folder(tmp_path / "model"))]
    return lambda *words: CliRunner().invoke(app, [*base, "--max-tokens", "12", "--recipes", "autoregressive", *words])


def test_one_command_shows_the_overhead_greedy_and_at_temperature_1_with_intervals(bench, tmp_path: Path):
    out = tmp_path / "e.json"
    done = bench("--batches", "1,8", "--nodes", "4", "--out", str(out))
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    for kind in ("greedy", "at temperature 1"):
        (said,) = [line for line in lines if line.startswith(f"plain decoding {kind}, batch 1: ")]
        value, ends = said.partition(": ")[2].split()[:2]
        low, high = map(float, ends.split("-"))
        assert low <= float(value) <= high
    rows = json.loads(out.read_text())["rows"]
    # Three prompts fill a batch of three, not of eight.
    assert [(r["recipe"], r["temperature"], r["batch"]) for r in rows] == [
        (name, temperature, batch)
        for temperature in (0.0, 1.0)
        for batch in (1, 3)
        for name in ("autoregressive", "known text, 4 nodes")
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batches", "1,257"], "batches cannot be '1,257'\nhint: 256 at most"),
        (["--nodes", "256"], "nodes cannot be '256'\nhint: 255 at most"),
        (["--temperature", "warm"], "temperature cannot be 'warm'"),
        (["--per-task", "2"], "bench engine has no option --per-task\nhint: --count: Number of questions"),
    ],
)
def test_mistakes_are_refused(bench, words: list[str], said: str):
    done = bench(*words)
    assert done.exit_code == 2 and said in done.stderr, done.output

"""draftwood bench verifiers from the command line, on a model that fits on a page."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood.bench import other_processes
from draftwood.bench.micro import verifiers
from draftwood.cli.main import app
from draftwood.testing.folder import write_folder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_processes, "look", lambda: {"load": [0.0], "foreign_cores": 0.0, "busiest": []})


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    folder = write_folder(tmp_path / "model")
    return lambda *words: CliRunner().invoke(app, ["bench", "verifiers", "--model", str(folder), *words])


@pytest.mark.slow  # what is measured is in tests/bench/test_verifiers.py
def test_a_run_ends_with_a_table_growth_and_a_file(bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(verifiers.RULES, "NoSuchRule", verifiers.RULES["Match"])
    out = tmp_path / "v.json"
    done = bench("--batches", "1,2", "--context", "16", "--repeats", "2", "--threads", "1", "--out", str(out))
    assert done.exit_code == 0, done.output
    for word in ("target pass", "Rejection", "% of the pass", "synthetic distributions", "batch 2 takes", '"commit"'):
        assert word in done.stdout, word
    assert "not built in, so not timed:" in done.stdout and "NoSuchRule" in done.stdout
    assert "0/2 repeats" in done.stderr and "2/2 repeats" in done.stderr
    result = json.loads(out.read_text())
    assert {row["batch"] for row in result["rows"]} == {1, 2} and "NoSuchRule" in result["absent"]
    assert result["provenance"]["machine_meanwhile"] and result["distributions"]["top_p"] == 0.95


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batches", "0"], "batches cannot be '0'"),
        (["--batches", "1,257"], "batches cannot be '1,257'\nhint: 256 at most"),
        (["--context", "250"], "the model holds 256"),
        (["--out", "nowhere/v.json"], "no folder"),
        (["--repeats", "0"], "--repeats"),
    ],
)
def test_mistakes_are_refused(bench, words, said: str):
    done = bench(*words)
    assert done.exit_code == 2 and said in done.stderr

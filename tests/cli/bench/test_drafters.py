"""draftwood bench drafters from the command line, with a tokenizer that fits on a page."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood.bench import other_processes
from draftwood.cli.main import app


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_processes, "look", lambda: {"load": [0.0], "foreign_cores": 0.0, "busiest": []})


@pytest.fixture
def bench(folder: Path) -> Any:
    sizes = ("--contexts", "16,64", "--rounds", "3", "--repeats", "2", "--model", str(folder))
    return lambda *words: CliRunner().invoke(app, ["bench", "drafters", *sizes, *map(str, words)])


def test_a_run_ends_with_a_table_and_a_file(bench: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("some words and some words " * 40)
    store = ["datastore", "build", str(tmp_path / "t.txt"), "--model", str(folder), "--out", str(tmp_path / "s")]
    assert CliRunner().invoke(app, store).exit_code == 0
    done = bench("--text", tmp_path / "t.txt", "--store", tmp_path / "s", "--out", tmp_path / "d.json")
    assert done.exit_code == 0, done.output
    assert "own: time of this thread alone" in done.stdout and '"commit"' in done.stdout
    result = json.loads((tmp_path / "d.json").read_text())
    assert [(row["drafter"], row["context"]) for row in result["rows"]] == [
        (name, context) for context in (16, 64) for name in ("ngram", "suffix", "datastore")
    ]
    assert all(row["drafted"] == 1 for row in result["rows"] if row["drafter"] == "datastore")


def test_without_a_store_its_own_sources_are_copied_from(bench: Any) -> None:
    done = bench()
    assert done.exit_code == 0 and "ngram" in done.stdout and "datastore" not in done.stdout.partition("{")[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--drafters", "ngrams"], "did you mean 'ngram'"),
        (["--drafters", "datastore"], "needs a store"),
        (["--contexts", "0"], "contexts cannot be '0'"),
        (["--store", "nowhere"], "cannot be opened"),
        (["--text", "nowhere"], "no such file or folder"),
        (["--out", "nowhere/d.json"], "no folder"),
    ],
)
def test_mistakes_are_refused(bench: Any, words: list[str], said: str) -> None:
    done = bench(*words)
    assert done.exit_code == 2 and said in done.stderr

"""draftwood bench serve from the command line, on a model that fits on a page."""

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
    folder = write_folder(tmp_path / "model", num_layers=3)
    base = ["bench", "serve", "--questions", str(file), "--model", str(folder), "--max-tokens", "6"]
    return lambda *words: CliRunner().invoke(app, [*base, *words])


@pytest.mark.slow
def test_every_case_serves_the_same_texts_at_every_load(bench: Any, tmp_path: Path) -> None:
    out = tmp_path / "s.json"
    words = ["--in-flight", "1,3", "--depths", "0,2", "--inner", "speculative_sampling:draft=first:1", "--repeats", "2"]
    names = "prompt_lookup,smart_spec:inner=prompt_lookup,tetris:nodes=1:inner=speculative_sampling:draft=first:1"
    done = bench(*words, "--recipes", names, "--out", str(out))
    assert done.exit_code == 0, done.output
    rows = json.loads(out.read_text())["rows"]
    assert [row["in_flight"] for row in rows] == [1] * 5 + [3] * 5
    assert [row["case"] for row in rows[:5]] == ["depth 0", "depth 2", *names.split(",")]
    assert all(row["identical"] == row["requests"] for row in rows)
    assert all(row["tokens_per_second"] > 0 and row["latency"] > 0 for row in rows)
    assert rows[0]["speed"] is None and rows[1]["speed"]["pairs"] == 2
    assert rows[4]["calibration_error"] is not None and rows[0]["calibration_error"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--in-flight", "0"], "in-flight cannot be '0'"),
        (["--depths", "x"], "depths cannot be 'x'"),
        (["--longest", "1"], "no question has a prompt of at most 1 tokens"),
        (["--recipes", "smart_spek"], "did you mean 'smart_spec'"),
    ],
)
def test_mistakes_are_refused(bench: Any, words: list[str], said: str) -> None:
    done = bench(*words)
    assert done.exit_code == 2 and said in done.stderr, done.output

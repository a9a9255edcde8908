"""draftwood simulate from the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftwood.cli.main import app


@pytest.mark.slow
def test_schedulers_are_compared_on_a_fixed_trace(tmp_path: Path) -> None:
    words = [
        "simulate",
        "--machine",
        "accelerator",
        "--trace",
        "poisson",
        "--seeds",
        "1",
        "--out",
        str(tmp_path / "s.json"),
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "s.json").read_text())["rows"]
    assert [row["scheduler"] for row in rows] == [
        "first come",
        "shortest first",
        "shortest first, 32 slots",
        "shortest first, lengths told",
        "shortest first, lengths told, 32 slots",
    ]
    assert rows[0]["ratio"] is None and all(row["mean"] > 0 for row in rows)


@pytest.mark.parametrize("words", [["--machine", "two core"], ["--trace", "burst"]])
def test_mistakes_are_refused(words: list[str]) -> None:
    done = CliRunner().invoke(app, ["simulate", *words])
    assert done.exit_code == 2 and "did you mean" in done.stderr

"""draftwood bench hostile from the command line, on a model that fits on a page."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood.bench.study.hostile import measure as hostile
from draftwood.bench.study.hostile.workloads import NAMES
from draftwood.cli.main import app
from draftwood.testing.folder import write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With room for the prompts, which have a token for each byte."""
    return write_folder(tmp_path_factory.mktemp("model"), max_positions=2048)


def bench(folder: Path, *words: str) -> Any:
    base = ["bench", "hostile", "--model", str(folder), "--count", "2", "--max-tokens", "8"]
    return CliRunner().invoke(app, [*base, *words])


def test_rows_are_printed_and_saved(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile.Row, "failures", property(lambda row: []))  # tiny passes are too noisy to judge
    out = tmp_path / "out.json"
    done = bench(folder, "--workloads", "one-token, useless-drafter", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert "auto against plain decoding, 2 requests of each workload" in done.stdout and "FAIL" not in done.stdout
    found = json.loads(out.read_text())
    assert [(row["workload"], row["answers"], row["identical"]) for row in found["rows"]] == [
        ("one-token", 2, 2),
        ("useless-drafter", 2, 2),
    ]
    assert found["provenance"]["command"] and {"speed", "worst", "rounds", "trace"} <= found["rows"][1].keys()


def test_a_missed_floor_is_status_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile.Row, "failures", property(lambda row: ["the whole run"]))
    done = bench(folder, "--workloads", "random-text", "--recipe", "prompt_lookup")
    assert done.exit_code == 1 and "FAIL: random-text (the whole run)" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workloads", "random"], "there is no workload 'random'\nhint: random-text, "),
        (["--recipe", "auto,eagle3"], "one recipe is compared at a time, got 'auto,eagle3'\nhint: "),
        (["--recipe", "nosuch"], "nosuch"),
        (["--count", "25"], "less than or equal to 24"),
    ],
)
def test_what_cannot_be_compared_is_refused(folder: Path, words: list[str], said: str) -> None:
    done = bench(folder, *words)
    assert done.exit_code == 2 and said in done.stderr


def test_the_page_of_the_benchmark_names_every_workload() -> None:
    page = (Path(__file__).parents[3] / "docs" / "benchmark.md").read_text()
    for name in NAMES:
        assert f"`{name.removesuffix('-stays')}`" in page, name

"""draftwood bench pass from the command line, on a model that fits on a page."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from draftwood.bench import other_processes
from draftwood.bench.micro import target_pass as passes
from draftwood.cli.main import app
from draftwood.testing.folder import write_folder
from draftwood.testing.host_reads import as_if_on_a_device


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at a machine and reading its memory take time, and what they see is not the point here."""
    monkeypatch.setattr(other_processes, "look", lambda: {"load": [0.0], "foreign_cores": 0.0, "busiest": []})
    monkeypatch.setattr(passes.measure, "__kwdefaults__", {**(passes.measure.__kwdefaults__ or {}), "probe": 2**20})


@pytest.fixture
def bench_pass(tmp_path: Path) -> Any:
    folder = write_folder(tmp_path / "model")
    return lambda *words: CliRunner().invoke(app, ["bench", "pass", "--model", str(folder), *words])


def test_a_run_ends_with_a_table_floors_parts_and_a_file(bench_pass, tmp_path: Path):
    out = tmp_path / "p.json"
    done = bench_pass("--sizes", "4,1,16", "--contexts", "8,32", "--repeats", "3", "--threads", "1", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert "from memory" in done.stdout and "from a warm cache of the same size" in done.stdout
    assert "a chain of 16 at context 8 spends" in done.stdout and '"commit"' in done.stdout
    assert "0/3 repeats" in done.stderr and "3/3 repeats" in done.stderr
    result = json.loads(out.read_text())
    assert result["provenance"]["backend"].startswith("int8") and result["provenance"]["threads"] == 1
    assert [(r["case"]["nodes"], r["case"]["shape"]) for r in result["rows"] if r["case"]["context"] == 32] == [
        (1, "chain"), (4, "chain"), (4, "tree"), (16, "chain"), (16, "tree"),
    ]  # fmt: skip
    assert {f["context"] for f in result["floors"]} == {8, 32} and set(result["bandwidth"]) == {"memory", "cache"}


def test_a_float_backend_is_timed_too(bench_pass):
    done = bench_pass("--sizes", "2", "--contexts", "8", "--repeats", "1", "--dtype", "float32")
    assert done.exit_code == 0 and '"backend": "float32"' in done.stdout
    assert torch.get_num_threads() == 1


def test_groups_of_layers_stand_in_the_table(bench_pass):
    done = bench_pass("--sizes", "2", "--contexts", "8", "--repeats", "1", "--groups", "1,2", "--threads", "1")
    assert done.exit_code == 0 and done.stdout.count("groups of 2") == 2, done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--groups", "0"], "groups cannot be '0'"),
        (["--sizes", "1,x"], "sizes cannot be '1,x'"),
        (["--sizes", ""], "hint: whole numbers"),
        (["--contexts", "0"], "contexts cannot be '0'"),
        (["--contexts", "250", "--sizes", "16"], "the model holds 256"),
        (["--out", "nowhere/p.json"], "no folder"),
        (["--threads", "257"], "--threads"),
    ],
)
def test_mistakes_are_refused(bench_pass, words, said: str):
    done = bench_pass(*words)
    assert done.exit_code == 2 and said in done.stderr


def test_on_a_device_memory_bandwidth_is_not_available(bench_pass):
    with as_if_on_a_device():
        done = bench_pass("--sizes", "4", "--contexts", "8", "--repeats", "1", "--dtype", "float32", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "memory bandwidth n/a" in done.stdout and "from memory" not in done.stdout.partition("over memory: ")[0]

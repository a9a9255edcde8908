"""`draftwood search layers` on a tiny model: a file that the recipe takes, going on after a kill, and what is refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood import recipes
from draftwood.cli.main import app
from draftwood.models.loading.load import load
from draftwood.runners.open import runner_of
from draftwood.testing.folder import write_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny") / "model")


def run(model: Path, out: Path, *more: str) -> Any:
    words = ["search", "layers", "--model", str(model), "--out", str(out), "--max-tokens", "6", "--depth", "2", *more]
    return CliRunner().invoke(app, words)


def test_it_writes_a_set_that_the_recipe_takes(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "skip.json"
    done = run(model, out, "--budget", "5")
    assert done.exit_code == 0, done.output
    assert (
        "5 sets tried, 6 prompts" in done.stdout
        and "x measured" in done.stdout
        and "sub-layers left out" in done.stdout
    )
    found = json.loads(out.read_text())
    assert found["tried"] == 5 and found["skip"] and len((tmp_path / "skip.jsonl").read_text().splitlines()) == 6
    recipe: Any = recipes.build("draft_and_verify", runner_of(load(str(model))), skip=str(out), size="paper")
    assert str(recipe.drafter.skip) == found["skip"]

    again = run(model, out, "--budget", "7")
    assert again.exit_code == 0 and "goes on after 5 sets" in again.stderr and "7 sets tried" in again.stdout
    other = run(model, out, "--budget", "7", "--seed", "1")
    assert other.exit_code == 2 and "another search: seed 0 then, 1 now" in other.stderr


def test_a_search_that_was_killed_goes_on(model: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "skip.json", tmp_path / "log.jsonl"
    words = ["search", "layers", "--model", str(model), "--out", str(out), "--log", str(log), "--max-tokens", "6"]
    child = subprocess.Popen(
        [sys.executable, "-m", "draftwood", *words, "--budget", "100000"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not log.exists() or len(log.read_text().splitlines()) < 3):
        time.sleep(0.1)
    child.send_signal(signal.SIGKILL)
    child.wait()
    before = len(log.read_text().splitlines()) - 1
    assert before >= 2 and not out.exists()
    done = CliRunner().invoke(app, [*words, "--budget", str(before + 2)])
    assert done.exit_code == 0, done.output
    assert f"goes on after {before}" in done.stderr or f"goes on after {before - 1}" in done.stderr
    assert json.loads(out.read_text())["tried"] == before + 2


def test_what_is_refused(model: Path, tmp_path: Path) -> None:
    out, empty = tmp_path / "skip.json", tmp_path / "empty.txt"
    empty.write_text("\n \n")
    long = tmp_path / ("a" * 300 + ".json")
    done = run(model, long)
    assert done.exit_code == 2 and "cannot be written: File name too long" in done.stderr
    for more, said in (
        (("--budget", "0"), "--budget 0: no set would be tried\nhint: at least 1"),
        (("--budget", "-1"), "--budget -1: no set would be tried\nhint: at least 1"),
        (("--prompts", str(tmp_path / "none.txt")), "cannot be read"),
        (("--prompts", str(empty)), "has no prompt"),
        (("--log", str(out)), "one file has two uses"),
        (("--log", str(tmp_path / "a" / ".." / "skip.json")), "there is no folder"),
        (("--log", f"{out}.partial"), "one file has two uses"),
        (("--prompts", str(out)), "one file has two uses"),
        (("--log", "/dev/null"), "is no file"),
        (("--max-tokens", "4000"), "a prompt of the prompts that ship has"),
        (("--log", str(tmp_path / "no" / "log")), "there is no folder"),
    ):
        done = run(model, out, *more)
        assert done.exit_code == 2 and said in done.stderr, (more, done.stderr)
    assert not out.exists()
    (tmp_path / "one.txt").write_text("hello there\n")
    done = run(model, out, "--budget", "1", "--prompts", str(tmp_path / "one.txt"))
    assert done.exit_code == 0 and "1 prompts" in done.stdout

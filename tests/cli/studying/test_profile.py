"""draftwood profile from the command line, on a model that fits on a page."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood.bench import other_processes
from draftwood.cli.main import app
from draftwood.testing.folder import write_folder

RECIPE = "speculative_sampling:draft=first:1"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is measured here, so nobody waits for a quiet machine."""
    monkeypatch.setattr(other_processes, "look", lambda: {"load": [0.0], "foreign_cores": 0.0, "busiest": []})
    monkeypatch.setattr(other_processes, "settle", lambda pids: None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "tiny")


def run(model: Path, *words: str, command: str = "profile", recipe: str = RECIPE) -> Any:
    return CliRunner().invoke(app, [command, recipe, "--model", str(model), *words])


def test_the_last_line_is_a_recipe(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "ranks.json"
    done = run(model, "--count", "2", "-n", "12", "--nodes", "9", "-t", "1", "--out", str(out))
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert found["tried"][0][0] > 0 and 0 < sum(found["acceptance"]) <= 1
    made = re.search(r"^sequoia:\S+$", done.stdout, re.M)
    assert made
    used = run(model, "--count", "1", "-n", "8", command="eval", recipe=made.group())
    assert used.exit_code == 0, used.output


def test_a_recipe_that_borrows_its_drafter_is_unwrapped(model: Path) -> None:
    done = run(model, "--count", "1", "-n", "12", "--nodes", "9", recipe=f"sequoia:nodes=5:inner={RECIPE}")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{RECIPE} drafts") and re.search(rf"^sequoia:\S+:inner={RECIPE}$", done.stdout, re.M)


def test_top_p_reaches_the_drafts(model: Path, tmp_path: Path) -> None:
    def siblings(*words: str) -> list[bool]:
        out = tmp_path / "ranks.json"
        done = run(model, "--count", "2", "-n", "12", "--nodes", "9", "-t", "1", "--out", str(out), *words)
        assert done.exit_code == 0, done.output
        return [any(column) for column in zip(*json.loads(out.read_text())["tried"], strict=True)]

    few = siblings("--top-p", "1e-9")
    assert few[0] and not any(few[1:]), "a distribution of one token has no second sibling"
    assert json.loads((tmp_path / "ranks.json").read_text())["top_p"] == 1e-9
    assert any(siblings()[1:])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--width", "0"), "greater than or equal to 1"),
        (("-t", "inf"), "temperature cannot be inf\nhint:"),
        (("-t", "-1"), "temperature cannot be -1"),
        (("-t", "2e6"), "temperature cannot be 2000000"),
        (("--top-p", "0"), "top_p cannot be 0"),
    ],
)
def test_odd_options_are_refused(model: Path, words: tuple[str, ...], said: str) -> None:
    done = run(model, *words)
    assert done.exit_code != 0 and said in done.output

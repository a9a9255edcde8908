"""draftwood bounds from the command line, on a model that fits on a page."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood.bench.study.rules import bounds as bench
from draftwood.cli.main import app
from draftwood.testing.folder import write_folder

DRAFT = ("--option", "draft=first:1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def run(model: Path) -> Any:
    def invoke(*words: str, recipe: str = "speculative_sampling") -> Any:
        small = ["--count", "2", "--positions", "6", "-n", "10", "--trials", "2"]
        return CliRunner().invoke(app, ["bounds", recipe, "--model", str(model), *small, *words])

    return invoke


def test_a_run_ends_with_tables_both_optima_and_a_file(run, tmp_path: Path):
    out = tmp_path / "b.json"
    done = run(*DRAFT, "-t", "0.7,1", "-k", "1,3", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert (
        done.stdout.count("no rule exceeds its bound, samples (*) not beyond chance") == 2
        and "temperature 0.7, 6 positions" in done.stdout
    )
    for word in ("best of any rule", "best of any rule, distinct", "transport", "k = 3", '"commit"'):
        assert word in done.stdout, word
    result = json.loads(out.read_text())
    assert [r["temperature"] for r in result["results"]] == [0.7, 1.0]
    line = next(x for x in result["results"][0]["lines"] if x["name"] == "rejection, distinct")
    assert line["sampled"] == [3] and set(line["kept"]) == {"1", "3"}
    assert set(line["kept"]["1"]) == {"value", "low", "high"}


def test_questions_come_from_a_file(run, tmp_path: Path):
    file = tmp_path / "q.jsonl"
    file.write_text('{"turns": ["one"]}\n{"turns": ["two"]}\n{"turns": ["three"]}\n')
    done = run(*DRAFT, "-t", "1", "-k", "2", "--questions", str(file), "--count", "3")
    assert done.exit_code == 0 and "6 positions of 3 prompts" in done.stdout


def test_top_p_reaches_the_distributions(run, tmp_path: Path):
    def kept(*words: str) -> dict[str, float]:
        out = tmp_path / "b.json"
        done = run(*DRAFT, "-t", "1", "-k", "2", "--out", str(out), *words)
        assert done.exit_code == 0, done.output
        return {line["name"]: line["kept"]["2"]["value"] for line in json.loads(out.read_text())["results"][0]["lines"]}

    assert len(set(kept("--top-p", "1e-9").values())) == 1, "of distributions with one token all rules keep the same"
    assert json.loads((tmp_path / "b.json").read_text())["top_p"] == 1e-9
    assert len(set(kept().values())) > 1


def test_a_rule_above_its_bound_is_said_and_ends_with_status_1(run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(bench.IID, "transport", lambda p, q, k: p.sum(1).double() + 1)
    done = run(*DRAFT, "-t", "1", "-k", "2")
    assert done.exit_code == 1 and "ABOVE ITS BOUND, which cannot be: transport with 2 siblings" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-k", "0"], "siblings cannot be '0'\nhint: whole numbers, at least 1"),
        (["-k", "two"], "siblings cannot be 'two'"),
        (["-t", "0"], "temperature cannot be '0'"),
        (["--top-p", "0"], "top_p cannot be 0"),
        (["-t", "warm"], "temperature cannot be 'warm'"),
        (["--questions", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["--out", "nowhere/b.json"], "no folder"),
    ],
)
def test_mistakes_are_refused(run, words: list[str], said: str):
    done = run(*DRAFT, *words)
    assert done.exit_code == 2 and said in done.stderr


def test_an_empty_file_holds_no_prompts(run, tmp_path: Path):
    (tmp_path / "q.jsonl").write_text("\n")
    done = run(*DRAFT, "--questions", str(tmp_path / "q.jsonl"))
    assert done.exit_code == 2 and "holds no questions" in done.stderr


def test_a_drafter_without_distributions_is_refused(run):
    done = run(recipe="prompt_lookup")
    assert done.exit_code == 2 and "draws from no distribution" in done.stderr


@pytest.mark.parametrize("words", [("-k", "99999999999999999999"), ("-t", "1e300"), ("-t", "1e-300")])
def test_numbers_beyond_all_use_are_refused_before_the_work(run: Any, words: tuple[str, str]) -> None:
    done = run(*DRAFT, *words)
    assert done.exit_code == 2 and "cannot be" in done.output and "prompt 1" not in done.output

"""draftwood bench rules from the command line, on a model that fits on a page."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from draftwood.bench import other_processes
from draftwood.bench.study.rules import compare as rules
from draftwood.bench.study.rules import first_level
from draftwood.cli.main import app
from draftwood.testing.folder import write_folder
from planted_rules import Everything

DRAFT = "speculative_sampling:draft=first:1"
QUESTIONS = [("qa", "one"), ("qa", "two"), ("math_reasoning", "three"), ("rag", "four")]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_processes, "look", lambda: {"load": [0.0], "foreign_cores": 0.0, "busiest": []})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def bench(model: Path, tmp_path: Path) -> Any:
    file = tmp_path / "questions.jsonl"
    lines = [{"question_id": i, "category": c, "turns": [t]} for i, (c, t) in enumerate(QUESTIONS)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def invoke(*words: str, count: int = 3) -> Any:
        small = ["--drafters", DRAFT, "--count", str(count), "--max-tokens", "8", "--nodes", "8", "--every", "2"]
        return CliRunner().invoke(
            app, ["bench", "rules", "--questions", str(file), "--model", str(model), *small, *words]
        )

    return invoke


def test_a_run_ends_with_tables_both_verdicts_and_files(bench, tmp_path: Path):
    out, page = tmp_path / "r.json", tmp_path / "r.md"
    done = bench(
        "--trees", "paths,static", "--temperature", "0,0.7", "--lp", "--out", str(out), "--markdown", str(page)
    )
    assert done.exit_code == 0, done.output
    for word in (
        "3 questions of 3 tasks",
        "paths, speculative_sampling:draft=first:1, temperature 0.7: iid tokens in independent paths",
        "best first level of any rule",
        "over Rejection",
        "Selection:lp",
        "PathBlock:counted",
        "at or above Rejection on the same trees within the interval:",
        "of 2 cells",
        "roots exceeded by a formula, 0 of",
        "positions are those of the first rule's run",
        '"commit"',
    ):
        assert word in done.stdout, word
    assert "the bound: 0 of " in done.stdout
    assert "3/3" in done.stderr and "static" in done.stderr  # paths have nothing to show at temperature 0
    result = json.loads(out.read_text())
    assert [(c["tree"], c["temperature"]) for c in result["cells"]] == [("static", 0), ("paths", 0.7), ("static", 0.7)]
    assert result["settings"]["questions"] == ["0", "2", "3"] and result["faults"] == []
    assert set(result["cells"][1]["lines"][1]["over"]) == {"value", "low", "high", "pairs"}
    assert result["provenance"]["machine_meanwhile"] and result["claim"]["cells"] == 2
    written = page.read_text()
    assert (
        "| first level accepted (by formula, at the positions of the bound) | Rejection |" in written
        and "| best of any rule |" in written
    )
    rows = [line for line in written.splitlines() if line.startswith("| ")]
    heads = [line for line in written.splitlines() if line.startswith("|---")]
    assert {row.count("|") for row in rows} == {head.count("|") for head in heads}


def test_some_rules_may_be_left_out(bench):
    done = bench("--trees", "chain-4", "--temperature", "1", "--rules", "Block")
    assert done.exit_code == 0 and "Block" in done.stdout and "Transport" not in done.stdout
    assert "left out" not in done.stdout


def test_a_pairing_that_is_not_exact_is_named_with_those_that_are(bench, tmp_path: Path):
    out, page = tmp_path / "r.json", tmp_path / "r.md"
    words = ("--temperature", "1", "--rules", "Block", "--out", str(out), "--markdown", str(page))
    done = bench("--trees", "chain-4,static", *words)
    said = "left out: Block on static; exact there: Rejection, Traversal, Match"
    assert done.exit_code == 0 and said in done.stdout and said in page.read_text()
    result = json.loads(out.read_text())
    assert result["settings"]["left_out"] == [said] and result["finished"] is True


def test_results_over_no_cells_are_left_out(bench):
    done = bench("--trees", "static", "--temperature", "0", "--rules", "Block")
    assert done.exit_code == 0 and "at temperature 0 all rules accept the same" in done.stdout
    assert "0 of 0" not in done.stdout and "the bound:" not in done.stdout


def test_top_p_reaches_the_distributions(bench, tmp_path: Path):
    out, page = tmp_path / "r.json", tmp_path / "r.md"

    def kept(*words: str) -> set[float]:
        done = bench("--trees", "paths", "--temperature", "1", "--out", str(out), "--markdown", str(page), *words)
        assert done.exit_code == 0, done.output
        (cell,) = json.loads(out.read_text())["cells"]
        return {line["tokens"]["value"] for line in cell["lines"]}

    assert len(kept("--top-p", "1e-9")) == 1, "of distributions with one token all rules keep the same"
    assert json.loads(out.read_text())["settings"]["top_p"] == 1e-9 and "tokens that sum to 1e-09" in page.read_text()
    assert len(kept()) > 1 and "tokens that sum to" not in page.read_text()


def test_a_rule_above_the_bound_is_said_and_ends_with_status_1(bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    known = rules.known_rules
    monkeypatch.setattr(rules, "known_rules", lambda: {**known(), "Traversal": Everything()})
    done = bench(
        "--trees", "chain-4", "--temperature", "1", "--max-tokens", "40", "--every", "1", "--rules", "Traversal"
    )
    assert done.exit_code == 1, done.stdout
    assert "ABOVE THE BOUND, which cannot be: chain-4" in done.stdout and "Traversal accepted more" in done.stdout


def test_a_formula_above_the_bound_ends_with_status_1(bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(first_level.IID, "Transport", lambda p, q, k: torch.ones(1))
    done = bench("--trees", "paths", "--temperature", "1")
    assert done.exit_code == 1 and "positions by formula" in done.stdout


def test_a_stopped_run_keeps_the_cells_it_has(bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    measure, out = rules.measure, tmp_path / "r.json"

    def stopped(loaded: Any, drafter: Any, tree: Any, *rest: Any, **options: Any) -> Any:
        if tree[0] == "static":
            os.kill(os.getpid(), signal.SIGINT)  # seen after the answer in progress
        return measure(loaded, drafter, tree, *rest, **options)

    monkeypatch.setattr(rules, "measure", stopped)
    done = bench("--trees", "chain-4,static", "--temperature", "1", "--out", str(out))
    assert done.exit_code == 130 and "stopped: 1 of 2 cells are measured" in done.stderr
    assert f'{out} has "finished": false' in done.stderr and "NOT FINISHED" in done.stdout
    found = json.loads(out.read_text())
    assert [c["tree"] for c in found["cells"]] == ["chain-4"] and found["settings"]["planned"] == 2
    assert found["finished"] is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--temperature", "warm"], "temperature cannot be 'warm'"),
        (["--temperature", "-1"], "temperature cannot be '-1'"),
        (["--trees", "path"], "unknown tree: 'path'"),
        (["--rules", "Blok"], "unknown rule: 'Blok'"),
        (["--rules", "block", "--trees", "static"], "Block is not exact on static, so there is nothing to measure"),
        (["--rules", "Block", "--trees", "static"], "hint: trees for it: chain-4, chain-8; exact on static: Rejection"),
        (["--nodes", "7"], "nodes"),
        (["--drafters", "egle3"], "did you mean"),
        (["--drafters", ""], "no recipes are named: ''\nhint: for example --drafters fast_draft,eagle3"),
        (["--top-p", "0"], "top_p cannot be 0"),
        (["--prompts", "3"], "has no option --prompts\nhint: --count: Number of questions"),
        (["--temperatures=1"], "has no option --temperatures\nhint: --temperature"),
        (["--drafters", "prompt_lookup", "--trees", "paths"], "cannot fill the tree paths"),
        (["--drafters", f"{DRAFT}:depth=3"], "would have no effect"),
        (["--trees", "paths", "--temperature", "0"], "nothing to compare at 0"),
        (["--out", "nowhere/r.json"], "no folder"),
        (["--markdown", "nowhere/r.md"], "no folder"),
        (["--questions", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
    ],
)
def test_mistakes_are_refused(bench, words: list[str], said: str):
    done = bench(*words)
    assert done.exit_code == 2 and said in done.stderr, done.output


def test_questions_are_not_overwritten(bench, tmp_path: Path):
    file = tmp_path / "questions.jsonl"
    done = bench("--out", str(file))
    assert done.exit_code == 2 and "would overwrite the questions" in done.stderr and '"one"' in file.read_text()

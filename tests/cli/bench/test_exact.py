"""draftwood bench exact: who promises the text is held to it, who promises the distribution alone is named and left out."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood.cli.main import app
from draftwood.core.verdict import Verdict
from draftwood.testing.folder import write_folder
from draftwood.verifiers.match import Match

pytestmark = pytest.mark.slow  # whole runs

DRAFT = "inner=speculative_sampling:draft=first:1"
DRAWN, LOSSY = f"traversal_verification:{DRAFT}", f"dynamic_mcsd:roots=target:weights=none:{DRAFT}"


@pytest.fixture
def exact(tmp_path: Path) -> Callable[..., Any]:
    """The command on a few questions and a tiny model."""
    file = tmp_path / "question.jsonl"
    asked = ["hello hello", "1 1 1 1", "who who", "why why", "so so so", "a b a b", "x", "then then"]
    file.write_text("".join(json.dumps({"question_id": i, "turns": [t]}) + "\n" for i, t in enumerate(asked)))
    folder = write_folder(tmp_path / "model")

    def invoke(*words: str) -> Any:
        base = ["bench", "exact", "--questions", str(file), "--model", str(folder), "--max-tokens", "48"]
        return CliRunner().invoke(app, [*base, *words])

    return invoke


def row(done: Any, name: str) -> list[str]:
    (found,) = [line.split() for line in done.stdout.splitlines() if line.split()[:1] == [name] and "/" in line]
    return found


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_penalties_change_the_texts_of_all_alike(exact, monkeypatch, temperature: str):
    from draftwood.bench.study import same_text

    seen: list[list[int]] = []
    real = same_text._compared

    def noted(loaded: Any, setting: Any, name: str, against: str, got: Any, wanted: Any) -> Any:
        seen.extend(r.output for r in got[:1])
        return real(loaded, setting, name, against, got, wanted)

    monkeypatch.setattr(same_text, "_compared", noted)
    words = ("--temperature", temperature, "--recipes", "prompt_lookup", "--batch", "8")
    for given in ((), ("--repetition-penalty", "1.5", "--presence-penalty", "1", "--frequency-penalty", "0.5")):
        done = exact(*words, *given)
        assert done.exit_code in (0, 3) and row(done, "prompt_lookup")[2] == "8/8", done.output
        assert (" with penalties, temperature" in done.stdout) == bool(given)
    assert seen[0] == seen[1] != seen[2] == seen[3]


def test_an_exact_rule_that_draws_for_itself_is_not_compared(exact):
    done = exact("--temperature", "1", "--recipes", f"{DRAWN},prompt_lookup")
    assert done.exit_code == 0, done.output
    why = "not compared: Traversal uses random numbers of its own: other texts from the same distribution"
    assert f"{DRAWN}: {why}" in done.stdout
    assert row(done, DRAWN)[2:6] == ["-"] * 4 and row(done, "prompt_lookup")[2] == "8/8"
    assert done.stdout.splitlines()[-1] == "exact: prompt_lookup, noisy oracle"


def test_the_same_recipe_is_compared_where_nothing_is_drawn(exact):
    done = exact("--recipes", DRAWN)
    assert done.exit_code == 0, done.output
    assert row(done, DRAWN)[2] == "8/8" and done.stdout.splitlines()[-1] == "exact"


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_lossy_recipe_is_called_so_and_never_judged(exact, temperature: str):
    done = exact("--temperature", temperature, "--recipes", LOSSY)
    assert done.exit_code == 0, done.output
    assert (
        row(done, LOSSY)[2:6] == ["LOSSY", "-", "-", "-"]
        and f"{LOSSY}: not compared: LongestRun is LOSSY" in done.stdout
    )
    assert done.stdout.splitlines()[-1] == "exact: noisy oracle"


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_matching_rule_that_emits_another_text_is_found(exact, monkeypatch, temperature: str):
    real = Match.verify

    def stubborn(self: Match, proposal: Any, target: Any, rnd: Any) -> Verdict:
        found = real(self, proposal, target, rnd)
        wrong = proposal.tree.num_nodes > 1  # plain decoding uses the rule, too, and must stay right
        return replace(found, next_token=(found.next_token + 1) % 250, on_host=None) if wrong else found

    monkeypatch.setattr(Match, "verify", stubborn)
    done = exact("--temperature", temperature, "--recipes", f"prompt_lookup,{DRAWN}")
    assert done.exit_code == 1 and "NOT EXACT: prompt_lookup" in done.stdout.splitlines()[-1]

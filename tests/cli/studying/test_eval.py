"""draftwood eval, as a user meets it: figures for a reader or a program, and mistakes refused before the work."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood.bench import other_processes
from draftwood.cli.main import app
from draftwood.models.loading.load import load
from draftwood.runners.open import runner_of
from draftwood.testing.folder import write_folder
from draftwood.testing.parts.heads import random_head, write_head

pytestmark = pytest.mark.slow  # whole runs


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a look at the machine sees is not the point here, nor is rest between two answers."""
    monkeypatch.setattr(other_processes, "look", lambda: {"load": [0.0], "foreign_cores": 0.0, "busiest": []})
    monkeypatch.setattr(other_processes, "settle", lambda pids: None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def run(model: Path, tmp_path: Path) -> Callable[..., Any]:
    """The command on three questions."""
    file = tmp_path / "question.jsonl"
    file.write_text("".join(json.dumps({"turns": [t]}) + "\n" for t in ("hello hello", "1 1 1 1", "why why")))

    def invoke(recipe: str, *words: str, source: tuple[str, ...] = ("--questions", str(file))) -> Any:
        return CliRunner().invoke(app, ["eval", recipe, "--model", str(model), "--max-tokens", "12", *source, *words])

    return invoke


def test_a_reader_gets_acceptance_text_speeds_and_terms(run, model: Path, tmp_path: Path):
    head = write_head(tmp_path / "head.safetensors", random_head("eagle3", runner_of(load(str(model)))))
    done = run("eagle3", "--option", f"weights={head}", "--count", "2")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("eagle3: 2 prompts, 12 tokens")
    assert "\ntemperature 0\n" in done.stdout and "\ntemperature 1\n" in done.stdout
    assert "greedy text equals autoregressive's: 2 of 2" in done.stdout
    for word in (
        "tokens per pass",
        "accepted by position",
        "all / some / none",
        "estimates alone",
        "target pass",
        "verify",
    ):
        assert word in done.stdout, word
    assert "15 %" in done.stdout and '"commit"' in done.stdout


def test_a_program_gets_one_object(run):
    done = run("prompt_lookup", "--json", "--temperature", "0")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    (result,) = found["results"]
    assert found["recipe"] == "prompt_lookup" and found["prompts"] == 3
    assert result["text"]["good"] and result["text"]["identical"] == 3
    assert set(result["rounds"]) == {"all", "some", "none"}
    assert result["forecast"]["ratio"] == pytest.approx(
        result["forecast"]["predicted"] / result["forecast"]["measured"]["value"]
    )


def test_one_prompt_is_measured_but_not_predicted(run):
    done = run("prompt_lookup", "--count", "1", "--temperature", "0")
    assert done.exit_code == 0 and "predicted            no:" in done.stdout


def test_texts_are_continued_as_they_are_and_dialogues_are_held_out_ones(run, tmp_path: Path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"prompt": "abcabcabc"}\n{"prompt": "xyxyxy"}\n')
    (tmp_path / "heldout.jsonl").write_text('{"kind": "chat", "tokens": [1, 2, 3, 4, 5], "answers": [[3, 5]]}\n' * 2)
    for source in (("--prompts", str(texts)), ("--data", str(tmp_path))):
        done = run("prompt_lookup", "--temperature", "0", "--json", source=source)
        assert done.exit_code == 0 and json.loads(done.stdout)["prompts"] == 2, done.output


def test_without_a_source_it_asks_questions_of_its_own(run):
    done = run("prompt_lookup", "--temperature", "0", "--count", "2", source=())
    assert done.exit_code == 0 and "2 prompts" in done.stdout


def test_top_p_reaches_the_answers(run):
    def counts(*words: str) -> tuple[float, ...]:
        done = run("speculative_sampling", "--option", "draft=first:1", "--json", *words)
        assert done.exit_code == 0, done.output
        (result,) = json.loads(done.stdout)["results"]
        return result["passes"], result["accepted_by_position"]

    greedy = counts("-t", "0")
    assert counts("-t", "1", "--top-p", "1e-9") == greedy, "one token is left"
    assert counts("-t", "1") != greedy
    assert ", top-p 0.9\n" in run("prompt_lookup", "-t", "1", "--top-p", "0.9", "--count", "1").stdout


def test_a_busy_machine_is_named(run, monkeypatch: pytest.MonkeyPatch):
    busy = {"load": [2.0], "foreign_cores": 1.5, "busiest": [{"name": "compiler", "cores": 1.5}]}
    monkeypatch.setattr(other_processes, "look", lambda: busy)
    monkeypatch.setattr(other_processes.Meter, "read", lambda self: busy)
    done = run("prompt_lookup", "--temperature", "0", "--count", "2")
    assert done.exit_code == 0
    assert "compiler" in done.stderr
    lines = done.stdout.splitlines()
    first, last = (i for i, line in enumerate(lines) if "USELESS TIMES" in line)
    (speed,) = (i for i, line in enumerate(lines) if line.startswith("  speed-up"))
    assert first < speed < last, "it is said before the figures that it is about, and after them"
    quiet = {**busy, "foreign_cores": 0.0}
    monkeypatch.setattr(other_processes.Meter, "read", lambda self: quiet)
    assert "USELESS" not in run("prompt_lookup", "--temperature", "0", "--count", "2").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eagel3"], "did you mean"),
        (["prompt_lookup", "--count", "0"], "--count"),
        (["prompt_lookup", "--temperature", "warm"], "temperature cannot be 'warm'"),
        (["prompt_lookup", "--temperature", "-1"], "temperature cannot be '-1'"),
        (["prompt_lookup", "--top-p", "1.5"], "top_p cannot be 1.5"),
        (["prompt_lookup", "--option", "wings=2"], "no option 'wings'"),
        (["prompt_lookup", "--data", "somewhere"], "one of --questions, --prompts, --data"),
        (["eagle3"], "hint: draftwood train eagle3"),
    ],
)
def test_mistakes_are_refused(run, words: list[str], said: str):
    done = run(*words)
    assert done.exit_code == 2 and said in done.stderr


@pytest.mark.parametrize(
    ("text", "said"), [("", "holds no questions"), ("{broken\n", "holds no question that can be read")]
)
@pytest.mark.parametrize("source", ["--questions", "--prompts"])
def test_a_file_without_prompts_is_refused(run, tmp_path: Path, source: str, text: str, said: str):
    file = tmp_path / "none.jsonl"
    file.write_text(text)
    done = run("prompt_lookup", source=(source, str(file)))
    assert done.exit_code == 2 and said in done.stderr


def test_a_prompt_beyond_the_context_is_refused_with_its_number(run, tmp_path: Path):
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"prompt": "a"}) + "\n" + json.dumps({"prompt": "a" * 9999}) + "\n")
    done = run("prompt_lookup", source=("--prompts", str(file)))
    assert done.exit_code == 2 and "prompt 2 has 9999 tokens" in done.stderr and "hint:" in done.stderr

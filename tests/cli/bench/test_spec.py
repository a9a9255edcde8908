"""draftwood bench spec from the command line, on a model that fits on a page."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood.bench import other_processes
from draftwood.bench.spec.peers import Settings
from draftwood.bench.spec.run import Plan
from draftwood.cli.bench.spec import remarks
from draftwood.cli.main import app
from draftwood.testing.folder import write_folder

pytestmark = pytest.mark.slow  # whole runs

QUESTIONS = [("writing", "hello hello"), ("math", "1 1 1 1"), ("qa", "who who"), ("qa", "why why"), ("qa", "why")]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at a machine takes time, and what it sees is not the point here."""
    monkeypatch.setattr(other_processes, "look", lambda: {"load": [0.0], "foreign_cores": 0.0, "busiest": []})


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., Any]:
    """The command on five questions and a tiny model."""
    file = tmp_path / "question.jsonl"
    lines = [{"question_id": i, "category": c, "turns": [t]} for i, (c, t) in enumerate(QUESTIONS)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + "{broken\n")
    folder = write_folder(tmp_path / "model")

    def invoke(*words: str) -> Any:
        base = [
            "bench",
            "spec",
            "--questions",
            str(file),
            "--model",
            str(folder),
            "--threads",
            "1",
            "--max-tokens",
            "6",
        ]
        return CliRunner().invoke(app, [*base, "--warmup", "1", *words])

    return invoke


def test_a_run_ends_with_tables_a_file_and_a_results_log(spec, tmp_path: Path):
    out = tmp_path / "r.json"
    done = spec("--recipes", "prompt_lookup", "--per-task", "2", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert (
        "4 questions, 6 tokens" in done.stdout
        and "writing" in done.stdout
        and "dialogue" not in done.stdout
        and '"commit"' in done.stdout
    )
    assert "left out: line 6" in done.stderr and "4/4 questions" in done.stderr
    result = json.loads(out.read_text())
    overall = result["figures"]["overall"]
    assert overall["prompt_lookup"]["identical"] == 4
    assert overall["autoregressive"]["speed_up"]["value"] == 1
    assert result["settings"]["recipes"] == ["autoregressive", "prompt_lookup"]
    assert result["provenance"]["methods"]["draftwood"]["eos"] == [257]
    assert set(result["machine"]) == {"0", "1", "2", "3"}
    lines = [json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines()]
    assert sum("answer" in line for line in lines) == 8 and sum("question" in line for line in lines) == 4

    again = spec("--recipes", "prompt_lookup", "--per-task", "2", "--out", str(out))
    assert again.exit_code == 0 and "questions" not in again.stderr.replace("left out", "")
    assert json.loads(out.read_text())["figures"] == result["figures"]

    other = spec("--recipes", "prompt_lookup", "--per-task", "1", "--out", str(out))
    assert other.exit_code == 2 and "questions: 4 then, 3 now" in other.stderr


def test_a_report_is_written_with_the_run_and_again_from_its_log(spec, in_this_process, tmp_path: Path):
    in_this_process()
    out, html, again = tmp_path / "r.json", tmp_path / "report.html", tmp_path / "again.html"
    done = spec("--recipes", "prompt_lookup", "--per-task", "1", "--out", str(out), "--html", str(html))
    assert done.exit_code == 0, done.output
    # Which questions stand under the losing cases depends on the times of this run.
    text = html.read_text()
    assert "prompt_lookup" in text and 'id="losses"' in text and f"report: {html}" in done.stderr
    read = CliRunner().invoke(app, ["bench", "report", str(out.with_suffix(".jsonl")), "--html", str(again)])
    assert read.exit_code == 0 and again.read_text() == html.read_text()


@pytest.mark.long
def test_transformers_answers_the_same_questions(spec, tmp_path: Path):
    pytest.importorskip("transformers")
    out = tmp_path / "r.json"
    done = spec(
        "--recipes", "auto", "--peers", "transformers", "--per-task", "1", "--dtype", "float32", "--out", str(out)
    )
    assert done.exit_code == 0, done.output
    result = json.loads(out.read_text())
    assert result["figures"]["overall"]["transformers"]["same_text_share"] == 1
    assert result["rivals"] == ["transformers"] and "ours over" in done.stdout


def test_a_broken_promise_is_status_one(spec, in_this_process):
    in_this_process(judge=lambda **_: {"status": "differs", "why": "planted"})
    done = spec("--recipes", "prompt_lookup", "--per-task", "1")
    assert done.exit_code == 1 and "NOT AS PROMISED\nprompt_lookup: 3 answers differ" in done.stdout


def test_sampling_is_held_against_plain_decodings_draws(spec, in_this_process):
    in_this_process()
    done = spec("--recipes", "prompt_lookup", "--per-task", "1", "--temperature", "1", "--seed", "4")
    assert done.exit_code == 0, done.output
    assert "use plain decoding's draws" in done.stdout and "not compared" not in done.stdout


DRAFT = "inner=speculative_sampling:draft=first:1"


def test_a_recipe_that_is_not_compared_is_named_and_has_no_share_of_equal_texts(spec, in_this_process):
    in_this_process()
    name, lossy = f"traversal_verification:{DRAFT}", f"dynamic_mcsd:roots=target:weights=none:{DRAFT}"
    done = spec("--recipes", f"{name},{lossy}", "--per-task", "1", "--temperature", "1")
    assert done.exit_code == 0, done.output
    assert f"{name}: not compared: Traversal uses random numbers of its own" in done.stdout
    assert f"{lossy}: not compared: LongestRun is LOSSY" in done.stdout
    (head,) = [i for i, line in enumerate(done.stdout.splitlines()) if line.startswith("method") and "text" in line]
    rows = {line.split()[0]: line.split()[-1] for line in done.stdout.splitlines()[head + 2 : head + 5]}
    assert rows[name] == "-" and rows[lossy] == "LOSSY"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--recipes", "prompt_lokup"], "did you mean 'prompt_lookup'"),
        (["--peers", "transformer"], "did you mean 'transformers"),
        (["--peers", "llamacpp"], "hint:"),
        (["--out", "nowhere/r.json"], "no folder"),
        (["--out", "r.jsonl"], "its own results log"),
        (["--html", "question.jsonl"], "is not named as a page"),
        (["--html", "nowhere/report.html"], "no folder"),
        (["--temperature", "-1"], "temperature"),
        (["--threads", "257"], "--threads"),
    ],
)
def test_mistakes_are_found_before_anything_is_loaded(spec, words, said: str):
    done = spec(*words)
    assert done.exit_code == 2 and said in done.stderr


def test_a_busy_machine_is_warned_about(spec, in_this_process, monkeypatch: pytest.MonkeyPatch):
    in_this_process()
    busy = {"load": [3.0], "foreign_cores": 1.5, "busiest": [{"name": "compiler", "cores": 1.5}]}
    monkeypatch.setattr(other_processes, "look", lambda: busy)
    done = spec("--recipes", "prompt_lookup", "--per-task", "1")
    assert "WARNING: 1.5" in done.stderr and "compiler" in done.stderr


@pytest.mark.parametrize("name", ["question.json", "question.jsonl"])
def test_questions_are_never_overwritten(spec, tmp_path: Path, name: str):
    before = (tmp_path / "question.jsonl").read_bytes()
    done = spec("--recipes", "auto", "--out", str(tmp_path / name), "--fresh")
    assert done.exit_code and "would overwrite the questions" in str(done.exception) + done.output
    assert (tmp_path / "question.jsonl").read_bytes() == before


def test_out_that_is_a_folder_is_refused_before_the_work(spec, tmp_path: Path):
    (tmp_path / "there").mkdir()
    done = spec("--recipes", "auto", "--out", str(tmp_path / "there"))
    assert done.exit_code and "cannot be written" in str(done.exception) + done.output


def test_failures_near_ties_and_a_busy_machine_are_remarked():
    figures = {"overall": {"auto": {"near_ties": 2}, "eagle3": {"near_ties": 0}}}
    failure = {"method": "auto", "question": "7", "error": "out of memory"}
    found = {"figures": figures, "not_compared": {}, "failures": [failure], "foreign_cores": {"mean": 0.4, "most": 1.0}}
    said = remarks(found, Plan((), Settings("m", 1, 4, methods=("auto", "eagle3"))))
    assert said[0] == "auto: 2 near ties, equal up to rounding" and "eagle3" not in " ".join(said)
    assert "1 answers failed" in said[1] and said[2] == "  auto, question 7: out of memory"
    assert said[-1] == "cores used by other processes: 0.40 on average, 1.00 at most"

"""What all measuring commands do alike: options of another command get a hint, SIGTERM a message."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from draftwood.cli.bench.common.command import TERMINATED, MeasuringCommand, Terminated
from draftwood.cli.main import app


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench", "spec", "--count", "3"], "bench spec has no option --count\nhint: --per-task: Number of questions"),
        (
            ["bench", "exact", "--per-task=3"],
            "bench exact has no option --per-task\nhint: --count: Number of questions",
        ),
        (["bench", "rules", "--prompts", "3"], "bench rules has no option --prompts\nhint: --count"),
        (["bench", "rules", "--temperatures", "1"], "bench rules has no option --temperatures\nhint: --temperature"),
        (["bounds", "eagle3", "--rows", "3"], "bounds has no option --rows\nhint: --positions"),
        (["profile", "eagle3", "--per-task", "3"], "profile has no option --per-task\nhint: --count"),
    ],
)
def test_an_option_of_another_command_gets_a_hint(words: list[str], said: str):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2 and said in done.stderr, done.output


def small_app(body) -> typer.Typer:
    small = typer.Typer()
    small.command(cls=MeasuringCommand)(body)
    return small


def test_sigterm_ends_with_a_message_its_own_status_and_open_things_closed():
    closed: list[str] = []

    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except KeyboardInterrupt as stop:  # as where results are kept
            closed.append(type(stop).__name__)
            raise

    before = signal.getsignal(signal.SIGTERM)
    done = CliRunner().invoke(small_app(work), [])
    assert done.exit_code == TERMINATED and "stopped by SIGTERM" in done.stderr
    assert closed == [Terminated.__name__] and signal.getsignal(signal.SIGTERM) is before


def test_without_a_signal_nothing_is_printed():
    done = CliRunner().invoke(small_app(lambda: None), [])
    assert done.exit_code == 0 and not done.output


@pytest.mark.slow
def test_a_terminated_run_says_what_it_keeps(tmp_path: Path, folder: Path):
    file, out = tmp_path / "questions.jsonl", tmp_path / "r.json"
    file.write_text('{"prompt": "hello"}\n' * 400)
    words = ["--questions", str(file), "--model", str(folder), "--recipes", "auto", "--out", str(out), "--threads", "1"]
    command = [sys.executable, "-m", "draftwood", "bench", "spec", "--warmup", "0", *words]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    log = out.with_suffix(".jsonl")
    end = time.monotonic() + 60
    while not (log.exists() and '"question"' in log.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    run.terminate()
    said = run.communicate(timeout=30)[1]
    assert run.returncode == TERMINATED, said
    assert "of 400 questions are in" in said and "the same command continues" in said and "stopped by SIGTERM" in said

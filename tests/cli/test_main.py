"""The command line as a whole: quick to start, clear when it refuses, quiet when nobody reads."""

import os
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood import __version__
from draftwood.cli import papers
from draftwood.cli.main import app


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out.decode(), err.decode()


def test_the_module_prints_the_version_too(start):
    assert finish(start("--version")) == (0, f"draftwood {__version__}\n", "")


def test_help_names_every_command_without_control_codes(start):
    status, out, _ = finish(start("--help"))
    assert status == 0 and "\x1b" not in out
    assert all(f"\n  {name} " in out for name in ("generate", "chat", "papers", "demo"))


def test_torch_is_not_imported_before_a_command_needs_it():
    commands = [["--version"], ["--help"], ["papers"], ["papers", "auto"], ["generate", "--help"]]
    code = (
        "import sys\nfrom draftwood.cli.main import app\n"
        f"for words in {commands!r}:\n"
        "    try: app(words)\n"
        "    except SystemExit as end: assert not end.code, (words, end.code)\n"
        "    assert 'torch' not in sys.modules and 'draftwood.core' not in sys.modules, words"
    )
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.slow
def test_control_the_check_for_torch_finds_an_import():
    code = "import sys\nfrom draftwood import recipes\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True)
    assert b"AssertionError" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["generate", "hi", "--recipe", "prompt_lokup"], "did you mean 'prompt_lookup'?"),
        (["chat", "--recipe", "autoregresive"], "did you mean 'autoregressive'?"),
        (["demo", "--recipe", "aut"], "did you mean 'auto'"),
        (["papers", "autoo"], "did you mean 'auto'"),
        (["generate", "hi", "--model", "smolm2"], "did you mean 'smollm2'?"),
    ],
)
def test_wrong_name_is_refused_with_the_nearest_ones(words, said):
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr and done.stderr.startswith("error: unknown ")


def test_unexpected_error_keeps_its_traceback(monkeypatch):
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(papers, "_list", broken)
    done = CliRunner().invoke(app, ["papers"])
    assert isinstance(done.exception, RuntimeError) and done.exit_code == 1


def test_wrong_option_and_wrong_command_end_with_status_2():
    runner = CliRunner()
    assert runner.invoke(app, ["generate", "--no-such"]).exit_code == 2
    assert "'papers'" in runner.invoke(app, ["paper"]).stderr


@pytest.mark.parametrize("words", [["--help"], ["papers"], ["papers", "tree"]])
def test_closed_pipe_is_no_error_message(start, words):
    process = start(*words)
    process.stdout.close()
    assert process.wait(60) in (1, 141)
    assert process.stderr.read() == b""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "env", "after"),
    [
        ("", {}, "30000"),
        ("", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("", {"OMP_WAIT_POLICY": "ACTIVE"}, "None"),
        ("import torch; ", {}, "None"),
    ],
)
def test_idle_threads_sleep_soon_unless_the_user_says_otherwise(before, env, after):
    code = f"{before}import os; from draftwood import LLM; print(os.environ.get('GOMP_SPINCOUNT'))"
    settings = {"PYTHONPATH": ":".join(sys.path), **env}
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], env=settings, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (after, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("words", [["papers"], ["--help"], ["papers", "tree"]])
def test_full_disk_is_an_error_of_ours(start, words):
    with open("/dev/full", "w") as full:
        process = start(*words, stdout=full)
        assert process.wait(60) == 74
    said = process.stderr.read().decode()
    assert (
        said.startswith("error: the output cannot be written: No space left on device\nhint: ")
        and "Traceback" not in said
    )


def test_other_errors_of_the_system_keep_their_traceback(monkeypatch):
    def broken(*_: Any) -> None:
        raise FileNotFoundError(2, "No such file", "somewhere")

    monkeypatch.setattr(papers, "_list", broken)
    assert isinstance(CliRunner().invoke(app, ["papers"]).exception, FileNotFoundError)

"""`draftwood expand`: a folder that the other commands take by name, and what is refused."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood.cli.main import app
from draftwood.testing.folder import write_folder

SHAPE = "3,64,8,2,16,64,300"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny") / "model")


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def expand(model: Path, out: Path, *more: str, shape: str = SHAPE) -> Any:
    return run("expand", "--model", str(model), "--shape", shape, "--out", str(out), *more)


def test_the_folder_is_a_model_that_says_the_same(model: Path, tmp_path: Path) -> None:
    done = expand(model, tmp_path / "wide", "--dtype", "float32")
    assert done.exit_code == 0, done.output
    assert "3 layers, hidden 64, 8 heads on 2, 16 wide, MLP 64, vocabulary 300" in done.stdout
    assert "billion parameters" in done.stdout and f"--model {tmp_path / 'wide'}" in done.stdout
    said = [
        run("generate", "hello", "--model", str(path), "--dtype", "float32", "-n", "20", "--quiet")
        for path in (model, tmp_path / "wide")
    ]
    assert [each.exit_code for each in said] == [0, 0] and said[0].stdout == said[1].stdout != ""
    again = expand(model, tmp_path / "wide")
    assert again.exit_code == 2 and "exists already" in again.stderr


def test_zeros_and_seeds(model: Path, tmp_path: Path) -> None:
    found = {}
    for name, more in {"zeros": ["--zeros"], "one": ["--seed", "1"], "two": ["--seed", "2"]}.items():
        assert expand(model, tmp_path / name, *more).exit_code == 0
        found[name] = (tmp_path / name / "model-00002-of-00005.safetensors").read_bytes()
    assert len(set(found.values())) == 3 and found["zeros"].count(0) > 2 * found["one"].count(0)


def test_what_is_refused(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "wide"
    for more, shape, said in (
        ((), "1,64,8,2,16,64,300", "layers: 1, the model has 2"),
        ((), "big", "shape cannot be 'big'"),
        ((), "3,64,8,2,12,64,300", "head size: 12 is no multiple of 8"),
        (("--heads", "eagle3"), SHAPE, "no head of kind 'eagle3' ships"),
        (("--model", "no/such/model"), SHAPE, "no/such/model"),
        (("--model", "hf:some/model"), SHAPE, "transformers runs it"),
        (("--out", str(tmp_path / "a" / "b")), SHAPE, "there is no folder"),
    ):
        done = expand(model, out, *more, shape=shape)
        assert done.exit_code == 2 and said in done.stderr, (more, done.stderr)
    done = expand(model, out, shape="100,100000,8,2,16,1000000,300")
    assert done.exit_code == 2 and "its disk has" in done.stderr and "hint:" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_kill_leaves_no_model_and_the_next_run_writes_it(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "wide"
    words = ["expand", "--model", str(model), "--shape", "40,512,8,2,16,4096,300", "--out", str(out)]
    child = subprocess.Popen(
        [sys.executable, "-m", "draftwood", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    partial = tmp_path / "wide.partial"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(list(partial.glob("*.safetensors"))) < 2:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert list(partial.glob("*.safetensors")) and not out.exists()
    done = expand(model, out)
    assert done.exit_code == 0, done.output
    assert [path.name for path in tmp_path.iterdir()] == ["wide"]

"""--device: every command that runs a model has it, and refuses a device that is not there before it reads the model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from draftwood.cli.main import app
from draftwood.testing.folder import write_folder

HELP = "cpu, cuda, cuda:N, or auto: a GPU if there is one."
NO_MODEL = {"papers", "convert"}  # catalogue and files

RUNS = {
    "generate": ["generate", "hi", "--model", "{model}"],
    "chat": ["chat", "--model", "{model}"],
    "demo": ["demo", "--model", "{model}"],
    "eval": ["eval", "prompt_lookup", "--model", "{model}"],
    "profile": ["profile", "fast_draft", "--model", "{model}"],
    "bounds": ["bounds", "fast_draft", "--model", "{model}"],
    "train data": ["train", "data", "--target", "{model}", "--out", "{out}"],
    "train learn": ["train", "eagle3", "--target", "{model}", "--out", "{out}"],
    "bench spec": ["bench", "spec", "--questions", "{questions}", "--model", "{model}"],
    "bench defaults": ["bench", "defaults", "--questions", "{questions}", "--model", "{model}"],
    "bench exact": ["bench", "exact", "--questions", "{questions}", "--model", "{model}"],
    "bench engine": ["bench", "engine", "--questions", "{questions}", "--model", "{model}"],
    "bench pass": ["bench", "pass", "--model", "{model}"],
    "bench verifiers": ["bench", "verifiers", "--model", "{model}"],
    "bench rules": ["bench", "rules", "--questions", "{questions}", "--model", "{model}"],
    "bench quality": ["bench", "quality", "--model", "{model}"],
}


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for word, found in command.commands.items():
        whole = f"{name} {word}".strip()
        yield from commands(found, whole) if hasattr(found, "commands") else [(whole, found)]


def test_every_command_that_runs_a_model_has_the_same_option():
    found = dict(commands(typer.main.get_command(app)))
    assert found.keys() - NO_MODEL == RUNS.keys()
    for name in RUNS:
        (option,) = [p for p in found[name].params if "--device" in p.opts]
        assert (option.help, option.default) == (HELP, "auto"), name
    assert not any("--device" in p.opts for name in NO_MODEL for p in found[name].params)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("device")
    (folder / "q.jsonl").write_text(json.dumps({"turns": ["hello"]}) + "\n")
    return {"model": write_folder(folder / "model"), "questions": folder / "q.jsonl", "out": folder / "out"}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("tpux", "device cannot be 'tpux'\nhint: cpu, cuda, cuda:N or auto"),
        pytest.param(
            "cuda",
            "device cuda cannot be used: ",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
)
def test_device_that_is_not_there_is_refused(name: str, device: str, said: str, places: dict[str, Path]):
    words = [word.format(**places) for word in RUNS[name]]
    done = CliRunner().invoke(app, [*words, "--device", device])
    assert done.exit_code == 2 and said in done.stderr, done.output
    assert not places["out"].exists()


def test_int8_is_for_cpus(places: dict[str, Path]):
    words = ["--model", str(places["model"]), "--device", "meta", "--dtype", "int8"]
    for command in (["generate", "hi"], ["bench", "spec", "--questions", str(places["questions"])]):
        done = CliRunner().invoke(app, [*command, *words])
        assert done.exit_code == 2 and "the int8 backend runs on a CPU, not on meta\nhint: " in done.stderr

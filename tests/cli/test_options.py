"""Options of commands reach the sampling params; what cannot be honoured is refused before a model is opened."""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from draftwood.cli.main import app
from draftwood.cli.options import said_top_p, sampling, temperatures, with_sampling
from draftwood.core.sampling.params import SamplingParams
from draftwood.errors import OptionError
from draftwood.testing.folder import write_folder


def test_defaults_are_those_of_the_library():
    assert sampling() == SamplingParams()


def test_every_option_arrives():
    wishes = {
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 3,
        "max_tokens": 9,
        "min_tokens": 2,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "ignore_eos": True,
        "logprobs": 4,
    }
    expected = SamplingParams(
        **wishes, stop=("x", "y"), stop_token_ids=(3, 4), include_stop_str_in_output=True, logit_bias={5: -1.0}
    )
    given = {"stop": ["x", "y"], "stop_token_id": [3, 4], "include_stop": True, "logit_bias": ["5=-1"]}
    assert sampling(**wishes, **given) == expected


@pytest.mark.parametrize("wish", [{"temperature": -1.0}, {"top_p": 0.0}, {"max_tokens": 0}, {"stop": [""]}])
def test_impossible_option_is_refused(wish):
    with pytest.raises(OptionError):
        sampling(**wish)


def test_command_takes_the_shared_options_behind_its_own():
    heard: list[object] = []

    @with_sampling
    def command(word: str = "hi", *, params: SamplingParams) -> None:
        """What it does."""
        heard.extend([word, params])

    names = list(inspect.signature(command).parameters)
    assert names == ["word", *inspect.signature(sampling).parameters] and command.__doc__ == "What it does."
    given = {name: p.default for name, p in inspect.signature(command).parameters.items()}
    command(**given | {"word": "ho", "top_k": 7})
    assert heard == ["ho", SamplingParams(top_k=7)]


def test_temperatures_are_numbers_each_once():
    assert temperatures("1,0,0.7,1") == [1.0, 0.0, 0.7] and temperatures("0.3", above_zero=True) == [0.3]


@pytest.mark.parametrize(
    ("text", "above_zero", "said"),
    [
        ("warm", False, "numbers, for example 0,1"),
        ("", True, "numbers, for example 0.3,1"),
        ("-1", False, "0 or more"),
        ("nan", False, "0 or more"),
        ("inf", True, "above 0, up to a million$"),
        ("0,1", True, "above 0; at 0 every exact rule"),
    ],
)
def test_temperatures_that_are_none_are_refused(text: str, above_zero: bool, said: str):
    with pytest.raises(OptionError, match=rf"levels cannot be '{text}'\nhint: {said}"):
        temperatures(text, "levels", above_zero=above_zero)


def test_top_p_is_said_where_it_leaves_out_tokens():
    assert (said_top_p(1.0), said_top_p(0.95)) == ("", ", top-p 0.95")


# --- where a model runs

HELP = "cpu, cuda, cuda:N, or auto: a GPU if there is one."
NO_MODEL = {
    "papers", "convert", "expand", "simulate", "cache clear", "datastore info", "datastore check", "bench drafters",
    "bench report",
}  # catalogue, files, tokenizers  # fmt: skip

RUNS = {
    "generate": ["generate", "hi", "--model", "{model}"],
    "alternatives": ["alternatives", "hi", "--model", "{model}"],
    "explain": ["explain", "hi", "--model", "{model}"],
    "replay": ["replay", "{out}", "--model", "{model}"],
    "chat": ["chat", "--model", "{model}"],
    "demo": ["demo", "--model", "{model}"],
    "eval": ["eval", "prompt_lookup", "--model", "{model}"],
    "profile": ["profile", "fast_draft", "--model", "{model}"],
    "bounds": ["bounds", "fast_draft", "--model", "{model}"],
    "train data": ["train", "data", "--target", "{model}", "--out", "{out}"],
    "train learn": ["train", "eagle3", "--target", "{model}", "--out", "{out}"],
    "bench spec": ["bench", "spec", "--questions", "{questions}", "--model", "{model}"],
    "bench recipes": ["bench", "recipes", "--questions", "{questions}", "--model", "{model}"],
    "bench exact": ["bench", "exact", "--questions", "{questions}", "--model", "{model}"],
    "bench engine": ["bench", "engine", "--questions", "{questions}", "--model", "{model}"],
    "bench pass": ["bench", "pass", "--model", "{model}"],
    "bench verifiers": ["bench", "verifiers", "--model", "{model}"],
    "bench rules": ["bench", "rules", "--questions", "{questions}", "--model", "{model}"],
    "bench quality": ["bench", "quality", "--model", "{model}"],
    "datastore build": ["datastore", "build", "{questions}", "--dense", "--model", "{model}", "--out", "{out}"],
    "bench edits": ["bench", "edits", "--model", "{model}"],
    "bench hostile": ["bench", "hostile", "--model", "{model}"],
    "serve": ["serve", "--model", "{model}", "--port", "0"],
    "bench serve": ["bench", "serve", "--model", "{model}"],
    "bench soak": ["bench", "soak", "--model", "{model}"],
    "search layers": ["search", "layers", "--model", "{model}", "--out", "{out}"],
}


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for word, found in command.commands.items():
        whole = f"{name} {word}".strip()
        yield from commands(found, whole) if hasattr(found, "commands") else [(whole, found)]


def test_every_command_that_runs_a_model_has_the_same_option():
    found = dict(commands(typer.main.get_command(app)))
    assert found.keys() - NO_MODEL - {"bench gpu"} == RUNS.keys(), "bench gpu takes no other device"
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

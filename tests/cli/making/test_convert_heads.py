"""`draftwood convert` tells what it decided, and its status says whether the head is the same."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftwood.cli.main import app
from draftwood.models.loading.load import load
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.folder import write_folder
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.train.formats import roundtrip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model")


def target_in(folder: Path) -> CpuRunner:
    """Without a name, so that its heads are nobody's."""
    return CpuRunner(load(str(folder), dtype="float32").model)


def run(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["convert", *map(str, words)])
    return done.exit_code, done.output + (done.stderr if done.stderr not in done.output else "")


def test_a_head_is_converted_and_converted_back(tmp_path: Path, model: Path):
    source = write_head(tmp_path / "head.safetensors", random_head("mlp", target_in(model), rows=100))
    status, said = run(source, "--to", "mlp_speculator", "--out", tmp_path / "there", "--target", model)
    assert status == 0 and "largest difference of logits" in said and "multiplied out" in said
    status, said = run(tmp_path / "there", "--to", "draftwood", "--out", tmp_path / "b.safetensors", "--float", "32")
    assert status == 0 and "read    mlp_speculator" in said and "logits 0.00e+00 over 258 tokens\n" in said


def test_rounding_is_reported(tmp_path: Path, model: Path):
    source = write_head(tmp_path / "head.safetensors", random_head("eagle3", target_in(model)))
    run(source, "--to", "eagle3", "--out", tmp_path / "there")
    status, said = run(
        tmp_path / "there", "--to", "draftwood", "--out", tmp_path / "b.safetensors", "--layer-ids", "sglang"
    )
    assert status == 0 and "rounded as requested" in said and "SGLang's convention" in said


def test_a_head_that_changed_is_not_kept(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch):
    source = write_head(tmp_path / "head.safetensors", random_head("eagle", target_in(model)))
    monkeypatch.setattr(roundtrip, "largest_difference", lambda *_: (0.5, 7))
    status, said = run(source, "--to", "eagle", "--out", tmp_path / "there")
    assert status == 1 and "was not kept" in said and not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--to", "medusa"], "cannot become medusa"),
        (["--to", "eagle", "--float", "8"], "--float cannot be 8"),
        (["--to", "eagle", "--target", "hf:some/model"], "leave out hf:"),
        (["--to", "eagle", "--target", "nowhere"], "unknown model"),
    ],
)
def test_mistakes_are_refused(tmp_path: Path, model: Path, words: list[str], why: str):
    source = write_head(tmp_path / "head.safetensors", random_head("eagle", target_in(model)))
    status, said = run(source, "--out", tmp_path / "there", *words)
    assert status == 2 and why in said and not (tmp_path / "there").exists()

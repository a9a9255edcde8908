"""draftwood bench gpu from the command line: refused without a GPU, each part by its name."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from draftwood.cli.bench.gpu import PARTS, Settings, small_pass
from draftwood.cli.main import app

GPU = "draftwood.cli.bench.gpu"  # the package has a function of this name


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["bench", "gpu", *words])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path / "results"))
    assert done.exit_code == 2 and "bench gpu: torch finds no GPU here\nhint:" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("everything",), "parts cannot be 'everything'\nhint: of pass, small"),
        (("pass", "--device", "cpu"), "measures a GPU, not cpu"),
        (("depths", "--batches", "0"), "batches cannot be '0'"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert done.exit_code == 2 and said in done.stderr


def module() -> Any:
    return sys.modules[GPU]


def test_chosen_parts_run_in_their_order_and_write_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def part(name: str) -> Any:
        def measured(settings: Settings) -> dict[str, Any]:
            seen.append(name)
            assert settings.batches == [1, 4] and settings.repeats == 2
            return {"rows": [], "backend": "bfloat16"}

        return measured

    monkeypatch.setattr(module(), "checked_device", lambda device: torch.device("cpu"))
    monkeypatch.setattr(module(), "RUN", {name: part(name) for name in PARTS})
    done = run("depths,pass", "--out", str(tmp_path), "--batches", "4,1", "--repeats", "2")
    assert done.exit_code == 0, done.output
    assert seen == ["pass", "depths"]
    text = (tmp_path / "gpu.md").read_text()
    assert "## A pass of an 8B shape" in text and "## Fixed depths" in text


def test_parts_measure_what_they_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On the CPU, with a tiny model: the arithmetic and the calls, not the times."""
    from draftwood.bench.gpu import floor, passes
    from draftwood.models.loading.load import load
    from draftwood.testing.folder import write_folder

    monkeypatch.setattr(floor, "COPIED", 2**16)
    monkeypatch.setattr(floor.bandwidth, "__defaults__", (2**16, 2))
    monkeypatch.setattr(passes, "PLAIN_CASES", (passes.Case(1, 8, 1), passes.Case(1, 8, 4), passes.Case(1, 8, 8)))
    monkeypatch.setattr(passes, "BATCH_CASES", (passes.Case(2, 8, 1),) * 4)
    settings = Settings("unused", torch.device("cpu"), [1], 1, 4)
    settings._loaded = load(str(write_folder(tmp_path)), dtype="float32", device="cpu")
    found = small_pass(settings)
    assert [row["case"]["batch"] for row in found["rows"]] == [1, 1, 1, 2] and found["bytes_per_second"] > 0
    assert all(row["ms"]["stock"] > 0 and row["ms"]["kernels"] is None for row in found["rows"])

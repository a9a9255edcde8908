"""Where kernels run, and what a machine without Triton does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from draftwood.kernels.gpu import launch
from draftwood.kernels.gpu.launch import runs_on

WITHOUT = """
import sys
sys.modules["triton"] = None  # as where it is not installed
import torch
import draftwood.cli.bench.gpu, draftwood.drafters.nets.runners.device_runner
from draftwood.kernels.gpu.launch import runs_on
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.parts.tiny import tiny_decoder
runner = CudaRunner(tiny_decoder(dtype=torch.bfloat16)).open(1, 16)
print(type(runner.cache).__name__, runs_on(torch.device("cuda")))
"""


@pytest.mark.slow
def test_without_triton_everything_else_runs() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "src")}
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout) == (0, "DeviceCache False\n"), done.stderr


def test_models_run_in_kernels_on_gpus_that_have_what_those_need(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(launch, "INTERPRETED", False)
    found: list[bool] = []
    for index, capability in enumerate(((9, 0), (8, 6), (10, 0))):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, own=capability: own)
        found.append(runs_on.__wrapped__(torch.device("cuda", index)))
    assert found == [True, False, True]
    assert not runs_on.__wrapped__(torch.device("cpu"))
    monkeypatch.setattr(launch, "INTERPRETED", True)
    assert not runs_on.__wrapped__(torch.device("cuda", 0)), "the interpreter is for tests"

"""Kernels compile for the GPUs that they are written for, also where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

HELPER = Path(__file__).resolve().parents[2] / "helpers" / "compile_kernels.py"
MOST_SHARED = 227 * 1024  # bytes of one multiprocessor of compute capability 9


@pytest.mark.slow
def test_every_kernel_compiles_for_compute_capability_9(tmp_path: Path) -> None:
    """At the sizes of the embedded model, and of one with norms of heads."""
    lines = compiled(tmp_path, "135m", "135m:invariant")
    shared = {line.split()[0]: int(line.split()[1]) for line in lines}
    assert len(shared) >= 14 and len(lines) > 30
    assert max(shared.values()) <= MOST_SHARED
    assert all(line.endswith("True") for line in lines), "each waits for the kernel before it"


@pytest.mark.long
def test_kernels_of_larger_models_compile(tmp_path: Path) -> None:
    lines = compiled(tmp_path, "8b", "8b:invariant", "qwen3", "qwen3:invariant", "qwen2")
    assert max(int(line.split()[1]) for line in lines) <= MOST_SHARED


def compiled(tmp_path: Path, *shapes: str) -> list[str]:
    source = Path(__file__).resolve().parents[3] / "src"
    env = {**os.environ, "PYTHONPATH": str(source), "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, str(HELPER), *shapes], capture_output=True, text=True, env=env, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()

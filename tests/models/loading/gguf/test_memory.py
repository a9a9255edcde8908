"""A file of floats is loaded within its own size: no float32 copy in memory, no larger copy in the cache."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from draftwood.testing.random_gguf import SHAPES, write

MB = 1 << 20
LOAD = """
import sys
from draftwood.models.loading.load import load
load(sys.argv[1], dtype=sys.argv[2], device="cpu")
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak(path: Path, dtype: str, environment: dict[str, str]) -> int:
    """Bytes of memory that a process which loads the file has at most."""
    run = [sys.executable, "-c", LOAD, str(path), dtype]
    return 1024 * int(subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="peak memory is read from Linux")
@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_floats_are_loaded_within_the_size_of_their_file(
    tmp_path: Path, child_env: Callable[[], dict[str, str]], kind: str
):
    path, cache = tmp_path / "model.gguf", tmp_path / "cache"
    size = write(path, SHAPES["smollm2-135m"], kind)
    environment = child_env() | {"DRAFTWOOD_CACHE": str(cache)}
    least = 1.25 * size + 400 * MB
    for _ in range(2):  # packed, then from the copy
        assert peak(path, "auto", environment) < least
    copies = [
        sum(file.stat().st_size for file in folder.iterdir())
        for folder in cache.glob("models/packed*")
        if folder.is_dir()
    ]
    assert len(copies) == 1 and copies[0] < 1.1 * size
    assert peak(path, "float32", environment) > least, "the twin: a float32 copy would be seen"

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from draftwood.models.loading.safetensors_writer import write_float32

SHAPES = {"a": (3, 5), "b": (7,), "c": (2, 2, 2)}


def arrays() -> dict[str, np.ndarray]:
    return {name: np.random.default_rng(0).normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def test_the_safetensors_library_reads_what_arrives_in_any_order(tmp_path: Path):
    wanted = arrays()
    write_float32(tmp_path / "x", SHAPES, reversed(list(wanted.items())))
    found = load_file(tmp_path / "x")
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], array) for name, array in wanted.items())


def test_data_begins_on_a_cache_line(tmp_path: Path):
    write_float32(tmp_path / "x", SHAPES, arrays().items())
    assert (8 + int.from_bytes((tmp_path / "x").read_bytes()[:8], "little")) % 64 == 0


def test_a_tensor_that_never_came_is_our_own_mistake(tmp_path: Path):
    with pytest.raises(AssertionError, match="never arrived"):
        write_float32(tmp_path / "x", SHAPES, list(arrays().items())[:2])

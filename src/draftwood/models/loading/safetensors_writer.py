"""Writes a safetensors file tensor by tensor, so that a conversion holds only one tensor in memory.

8 bytes: length of the header, little-endian | header: JSON, padded with spaces | data, in the header's order
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np


def write_float32(path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write float32 tensors that arrive in any order. `shapes` names all of them beforehand."""
    entries: dict[str, dict[str, object]] = {}
    begins: dict[str, int] = {}
    end = 0
    for name, shape in shapes.items():
        begins[name] = end
        end += 4 * int(np.prod(shape, dtype=np.int64))
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begins[name], end]}
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    header += b" " * (-(8 + len(header)) % 64)  # so that tensors begin on cache lines
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        written: set[str] = set()
        for name, array in tensors:
            assert array.shape == shapes[name] and array.dtype == np.float32, f"{name}: {array.shape} {array.dtype}"
            file.seek(8 + len(header) + begins[name])
            file.write(np.ascontiguousarray(array).data)
            written.add(name)
        assert written == set(shapes), f"never arrived: {set(shapes) - written}"

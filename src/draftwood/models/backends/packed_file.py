"""Packed weights as two files: an index, and the bytes of all tensors. Written in slices; a large one is mapped, so that
processes share it."""

import json
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.models.backends.int8_weights import Entry, Int8Weights, Rows, assembled
from draftwood.models.backends.large_pages import large_pages
from draftwood.models.backends.quantised_blocks import Kind, Packed

INDEX, DATA = "packed.json", "packed.bin"
MAPPED = 256 << 20  # bytes; a smaller file is read into memory on huge pages, which takes no longer than mapping it
_ALIGN = 64  # a cache line
_POPULATE_READ = 22  # of Linux's madvise; Python has no name for it


def write(
    entries: Iterable[Entry], folder: Path, note: Mapping[str, Any], say: Callable[[int], None] = lambda _: None
) -> None:
    """Write what arrives, slice by slice. `say` is told how many bytes were written."""
    listed: list[dict[str, Any]] = []
    with (folder / DATA).open("wb") as file:
        for name, found in entries:
            file.write(b"\0" * (-file.tell() % _ALIGN))
            start = file.tell()
            slices = (x.data for x in found.slices) if isinstance(found, Rows) else (found,)
            for tensor in slices:
                say(file.write(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data))
            shape = [found.rows, found.columns, int(found.kind)] if isinstance(found, Rows) else None
            listed.append({"name": name, "at": start, "bytes": file.tell() - start, "packed": shape})
    (folder / INDEX).write_text(json.dumps({"note": dict(note), "tensors": listed}), "utf-8")


def read(folder: Path, config: ModelConfig) -> tuple[Int8Weights, dict[str, Any]]:
    """The weights, and the note that was saved with them."""
    index = json.loads((folder / INDEX).read_text("utf-8"))
    memory = _memory(folder / DATA)
    found: dict[str, Packed | Tensor] = {}
    for entry in index["tensors"]:
        raw = memory[entry["at"] : entry["at"] + entry["bytes"]]
        if entry["packed"] is None:
            found[entry["name"]] = raw.view(torch.float32)
        else:
            rows, columns, kind = entry["packed"]
            found[entry["name"]] = Packed(raw, rows, columns, Kind(kind))
    return assembled(config, found, where=str(folder / INDEX)), index["note"]


def _memory(path: Path) -> Tensor:
    """A file's bytes: mapped, or in memory of their own."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size < MAPPED:
            memory = large_pages(size)
            file.readinto(memory)  # type: ignore[attr-defined]
        else:
            # Private, because torch takes only writable memory; pages stay shared as long as nobody writes.
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            _read_ahead(memory)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _read_ahead(memory: mmap.mmap) -> None:
    """Let the system read all of a file now, in its order; the first pass would wait for one page after another."""
    if os.name == "nt" or not hasattr(memory, "madvise"):
        return
    try:
        memory.madvise(_POPULATE_READ)
    except (OSError, ValueError):  # kernels before 5.14, and other systems
        memory.madvise(mmap.MADV_WILLNEED)

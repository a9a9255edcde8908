"""A model's packed weights in the cache: made once, mapped by every later start.

The key names what the weights were packed from, so a changed file gets a new copy. A warm start does not open the file or
folder that the model came from. Weights are written as they are packed, so memory never holds all of them.
"""

import hashlib
import logging
from pathlib import Path

from draftwood.core.config import ModelConfig
from draftwood.errors import ModelError
from draftwood.models.backends import packed_file
from draftwood.models.backends.int8_weights import Int8Weights, Source, entries, from_source
from draftwood.models.backends.quantised_blocks.kinds import FLOATS
from draftwood.models.loading import folder_cache
from draftwood.models.loading.progress import packing
from draftwood.models.loading.resolve import Place

VERSION = 4  # raise it when the same weights should be packed differently
WORTH_KEEPING = 64 << 20  # bytes of weights; packing fewer is faster than finding and checking a copy

log = logging.getLogger("draftwood")


def find(place: Place, config: ModelConfig, *, bits: int | None = None) -> tuple[Int8Weights, str] | None:
    """The finished copy of a model and its fingerprint, if there is one. `bits`: what matrices of floats are rounded to;
    None: those of a file stay as they are, those of a folder are rounded to 8."""
    if not _large(place):
        return None
    found = _open(place, config, bits)
    if found is None and bits == 8 and place.gguf is not None:  # a file without such matrices has one copy
        found = _open(place, config, None)
        return found if found is not None and found[0].kinds.isdisjoint(FLOATS) else None
    return found


def _open(place: Place, config: ModelConfig, bits: int | None) -> tuple[Int8Weights, str] | None:
    folder = folder_cache.cache_dir() / "models" / _key(place, bits)
    return _read(folder, config) if folder_cache.is_intact(folder) else None


def make(
    place: Place, config: ModelConfig, source: Source, fingerprint: str, *, bits: int | None = None
) -> Int8Weights:
    """Pack into the cache, or into memory if it cannot be written or the model is small."""
    if not _large(place):
        return from_source(config, source)

    def pack(folder: Path) -> None:
        with packing(place.name, _num_bytes(place)) as say:
            packed_file.write(entries(config, source), folder, {"fingerprint": fingerprint}, say)

    about = {"what": "packed weights", "of": str(place.gguf or place.folder)}
    try:
        weights, _ = _read(folder_cache.build(_key(place, bits), pack, about=about), config)
    except ModelError as error:
        log.warning("the packed weights are not kept: %s", error)
        return from_source(config, source)
    return weights


def _read(folder: Path, config: ModelConfig) -> tuple[Int8Weights, str]:
    weights, note = packed_file.read(folder, config)
    return weights, str(note["fingerprint"])


def _large(place: Place) -> bool:
    return _num_bytes(place) >= WORTH_KEEPING


def _num_bytes(place: Place) -> int:
    return sum(path.stat().st_size for path in place.weight_files)


def _key(place: Place, bits: int | None) -> str:
    """Our own folder is identified by its name; a user's folder by the sizes and dates of its files."""
    if place.ours:
        return f"packed{VERSION}-{place.folder.name}" + ("" if bits is None else f"-int{bits}")
    digest = hashlib.sha256(str(place.folder.resolve()).encode() + b"four bits" * (bits == 4))
    for path in sorted(place.folder.iterdir()):
        if path.suffix in (".safetensors", ".json"):
            found = path.stat()
            digest.update(repr((path.name, found.st_size, found.st_mtime_ns)).encode())
    return f"packed{VERSION}-{digest.hexdigest()[:32]}"

"""A model's int8 copy in the cache: packed once, read straight into memory by every later start.

The key names what the weights were packed from, so a changed file gets a new copy. A warm start does not open the float
weights.
"""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.errors import ModelError
from draftwood.models.backends import int8_weights
from draftwood.models.loading import folder_cache
from draftwood.models.loading.resolve import Place

VERSION = 1  # raise it when the same weights should be packed differently
WORTH_KEEPING = 64 << 20  # bytes of float weights; packing fewer is faster than finding and checking a copy

log = logging.getLogger("draftwood")


def find(place: Place) -> Path | None:
    """The finished copy for a model's folder, if there is one."""
    if not _large(place):
        return None
    folder = folder_cache.cache_dir() / "models" / _key(place)
    return folder if folder_cache.is_intact(folder) else None


def make(
    place: Place, config: ModelConfig, tensors: Mapping[str, Tensor], fingerprint: str
) -> int8_weights.Int8Weights:
    """Pack, and keep the copy if the cache can be written. `fingerprint` is that of the float weights."""
    weights = int8_weights.from_tensors(config, tensors)
    if not _large(place):
        return weights
    try:
        folder_cache.build(_key(place), lambda folder: int8_weights.save(weights, folder, {"fingerprint": fingerprint}))
    except ModelError as error:
        log.warning("the int8 weights are not kept: %s", error)
    return weights


def _large(place: Place) -> bool:
    return sum(path.stat().st_size for path in place.folder.glob("*.safetensors")) >= WORTH_KEEPING


def _key(place: Place) -> str:
    """Our own folder is identified by its name; a user's folder by the sizes and dates of its files."""
    if place.ours:
        return f"int8-{VERSION}-{place.folder.name}"
    digest = hashlib.sha256(str(place.folder.resolve()).encode())
    for path in sorted(place.folder.iterdir()):
        if path.suffix in (".safetensors", ".json"):
            found = path.stat()
            digest.update(repr((path.name, found.st_size, found.st_mtime_ns)).encode())
    return f"int8-{VERSION}-{digest.hexdigest()[:32]}"

"""GGUF file -> a Hugging Face folder in the cache, made once. Later starts read only the folder.

The folder is keyed by the file's SHA-256 and the converter's version, so a copy of the same file elsewhere shares it
and a changed file gets a new one. Hashing a large file takes seconds; a small note remembers the hash of a file that
the operating system says has not changed since.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from draftwood.errors import WeightsError
from draftwood.models.loading import folder_cache, hf_config
from draftwood.models.loading.checkpoint import SINGLE
from draftwood.models.loading.gguf import tokenizer, weights
from draftwood.models.loading.gguf.config import read_config
from draftwood.models.loading.gguf.header import read_header
from draftwood.models.loading.safetensors_writer import write_float32
from draftwood.models.loading.tensor_names import check_names
from draftwood.models.loading.tokenizer import Tokenizer

VERSION = 1  # raise it when the same file should be converted differently

# Two changes within one tick of the file system's clock look the same: a file this young is hashed again next time.
SETTLED_NS = 2_000_000_000


def converted(path: Path, *, light: bool = False) -> Path:
    """The folder that holds what `path` holds, in float32 safetensors and tokenizer.json; made on the first call.

    `light`: do not read the weights to compare them with their checksum; for callers that will not use them.
    """
    unread = frozenset({SINGLE}) if light else frozenset[str]()
    return folder_cache.build(
        f"gguf{VERSION}-{_digest(path)[:32]}", lambda folder: convert(path, folder), unread=unread
    )


def convert(path: Path, folder: Path) -> None:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json into an empty folder.

    Everything that can be refused is refused before the first tensor is read.
    """
    header = read_header(path)
    config = read_config(header)
    shapes = weights.hf_shapes(header)
    check_names(config, shapes, where=str(path))
    backend, tokenizer_config = tokenizer.convert(header)
    _write_json(folder / "config.json", hf_config.unparse(config) | {"dtype": "float32"})
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    # Written by us, not by the library: that one hides a full disk in an error of its own.
    (folder / "tokenizer.json").write_text(backend.to_str(), "utf-8")
    Tokenizer.from_folder(folder).check(config)
    write_float32(folder / SINGLE, shapes, weights.tensors(header, config))


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), "utf-8")


def _digest(path: Path) -> str:
    """SHA-256 of a file, from the note if the file is the one the note was written about."""
    try:
        found = path.stat()
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    # ctime changes with every write and cannot be set back, so a restored time stamp hides nothing.
    seen = [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
    name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]
    note = folder_cache.cache_dir() / "seen" / f"{name}.json"
    try:
        remembered = json.loads(note.read_text("utf-8"))
        if remembered["seen"] == seen:
            return str(remembered["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        digest = folder_cache.sha256(path)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    if time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) > SETTLED_NS:
        _write_note(note, {"seen": seen, "sha256": digest})
    return digest


def _write_note(note: Path, value: dict[str, object]) -> None:
    """Best effort: without the note the next start hashes the file again, and that is all."""
    fresh = note.with_name(f"{note.name}.{os.getpid()}")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(value), "utf-8")
        fresh.replace(note)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)

"""GGUF file -> a Hugging Face folder in the cache, made once. Later starts read only the folder.

`described` makes config.json and the tokenizer alone, which is all that the packed backends need; `converted` also makes
float32 weights, for who asks for floats.

The folder's key is the file's SHA-256 and the converter's version, so a copy of the file elsewhere shares it and a changed
file gets a new one. Hashing a large file takes seconds, so a small note keeps the hash of an unchanged file.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from draftwood.core.config import ModelConfig
from draftwood.errors import WeightsError
from draftwood.models.loading import folder_cache, hf_config
from draftwood.models.loading.checkpoint import SINGLE
from draftwood.models.loading.gguf import tokenizer, weights
from draftwood.models.loading.gguf.config import read_config
from draftwood.models.loading.gguf.header import Header
from draftwood.models.loading.gguf.split import parts_of, read_model
from draftwood.models.loading.tensor_names import check_names
from draftwood.models.loading.tokenizer import Tokenizer

VERSION = 2  # raise it when the same file should be converted differently

# Two changes within one tick of the file system's clock look alike, so the hash of a file this new is not kept.
SETTLED_NS = 2_000_000_000


def described(path: Path) -> Path:
    """The folder with config.json and the tokenizer of `path`, without weights; made on the first call. `path` may be any
    part of a split model."""

    def make(folder: Path) -> None:
        describe(path, folder)

    return folder_cache.build(_key(path), make, about=_about(path, "description"))


def converted(path: Path, *, light: bool = False) -> Path:
    """The folder with the content of `path` as float32 safetensors and tokenizer.json; made on the first call.

    `light`: skip the checksum of the weights; for callers that do not read them.
    """
    unread = frozenset({SINGLE}) if light else frozenset[str]()
    about = _about(path, "float32 weights")
    return folder_cache.build(f"{_key(path)}-float32", lambda folder: convert(path, folder), unread=unread, about=about)


def describe(path: Path, folder: Path) -> tuple[Header, ModelConfig]:
    """Write config.json, tokenizer.json and tokenizer_config.json into an empty folder. All checks of the header run."""
    header = read_model(path)
    config = read_config(header)
    check_names(config, weights.hf_shapes(header), where=str(path))
    backend, tokenizer_config = tokenizer.convert(header)
    _write_json(folder / "config.json", hf_config.unparse(config) | {"dtype": "float32"})
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    # Not backend.save(): it hides a full disk in an error of its own.
    (folder / "tokenizer.json").write_text(backend.to_str(), "utf-8")
    Tokenizer.from_folder(folder).check(config)
    return header, config


def convert(path: Path, folder: Path) -> None:
    """The same and model.safetensors. All checks of the header run before the first tensor is read."""
    header, config = describe(path, folder)
    write_float32(folder / SINGLE, weights.hf_shapes(header), weights.tensors(header, config))


def _key(path: Path) -> str:
    files = parts_of(path)
    digests = [_digest(file) for file in files]
    whole = digests[0] if len(files) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()
    return f"gguf{VERSION}-{whole[:32]}"


def _about(path: Path, what: str) -> dict[str, str]:
    return {"what": what, "of": str(path.absolute())}


def write_float32(path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write a safetensors file tensor by tensor, so that a conversion holds only one in memory. They arrive in any order;
    `shapes` names all of them beforehand.

    8 bytes: length of the header, little-endian | header: JSON, padded with spaces | data, in the header's order
    """
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


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), "utf-8")


def _digest(path: Path) -> str:
    """SHA-256 of a file, from the note if the file has not changed since."""
    try:
        found = path.stat()
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    # ctime changes with every write and cannot be set, so a restored mtime does not hide a change.
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
    """Best effort: without the note the next start hashes the file again."""
    fresh = note.with_name(f"{note.name}.{os.getpid()}")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(value), "utf-8")
        fresh.replace(note)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)

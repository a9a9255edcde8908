"""The user's cache of finished folders: each is made once, is complete or absent, and is checked when it is opened.

    <cache>/models/<key>/           a finished folder with its manifest.json
    <cache>/models/<key>.partial/   the one being made, by the process that holds <key>.lock
    <cache>/models/<key>.lock

A folder appears by one rename, after all of its bytes are on disk. Two first starts at once make it once, a kill in the
middle leaves only a `.partial` that the next start removes, and a full disk leaves nothing. A finished folder whose bytes
do not match its manifest is made again.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from draftwood.errors import ModelError

MANIFEST = "manifest.json"
PARTIAL = ".partial"

# Hashing reads about 1.5 GB/s. A larger file would delay every start, so its size, its time stamp and samples decide.
FULL_HASH_BYTES = 256 << 20
SAMPLES, SAMPLE_BYTES = 256, 4096


def cache_dir() -> Path:
    """The folder for files that draftwood can make again: $DRAFTWOOD_CACHE, else the platform's user cache."""
    chosen = os.environ.get("DRAFTWOOD_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    try:
        return user_cache_path("draftwood", appauthor=False, opinion=False)
    except RuntimeError as error:  # there is no home folder
        raise ModelError(f"no home folder to keep the model cache in: {error}\nhint: set DRAFTWOOD_CACHE") from error


def build(
    key: str,
    make: Callable[[Path], None],
    *,
    unread: frozenset[str] = frozenset(),
    about: Mapping[str, str] | None = None,
) -> Path:
    """The finished folder `key`. If it is missing or damaged, `make(empty_folder)` fills it first.

    Of files in `unread` only the size is checked. `about`: what the folder is and belongs to, for a listing. `make` runs
    under the key's lock, in one process at a time. Its errors pass through after the partial folder is removed; a full or
    read-only disk becomes a ModelError.
    """
    folder = cache_dir() / "models" / key
    if is_intact(folder, unread):  # without the lock: a finished folder is never changed, only replaced
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(key + ".lock")):  # released by the system when its holder ends, however it ends
            if not is_intact(folder, unread):  # another process may have finished it while we waited
                _sweep(folder.parent, mine=key)
                _make(folder, make, about or {})
    except OSError as error:
        raise _explain(error, folder) from error
    return folder


def is_intact(folder: Path, unread: frozenset[str] = frozenset()) -> bool:
    """Whether the folder is finished and every file is as its manifest says; those in `unread` by their size alone."""
    try:
        files: dict[str, dict[str, Any]] = json.loads((folder / MANIFEST).read_text("utf-8"))["files"]
        return all(
            (folder / name).stat().st_size == entry["bytes"] if name in unread else _matches(folder / name, entry)
            for name, entry in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _matches(path: Path, entry: dict[str, Any]) -> bool:
    found = path.stat()
    if found.st_size != entry["bytes"]:
        return False
    if found.st_size > FULL_HASH_BYTES:
        return found.st_mtime_ns == entry["mtime_ns"] and _sampled(path) == entry["sha256"]
    return sha256(path) == entry["sha256"]


def _sampled(path: Path) -> str:
    """Hex digest of evenly spaced samples of a large file, with both ends."""
    size, digest = path.stat().st_size, hashlib.sha256()
    with path.open("rb") as file:
        for i in range(SAMPLES):
            file.seek((size - SAMPLE_BYTES) * i // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def sha256(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make(folder: Path, make: Callable[[Path], None], about: Mapping[str, str]) -> None:
    partial = folder.with_name(folder.name + PARTIAL)
    partial.mkdir()
    try:
        make(partial)
        entries = {path.name: _describe(path) for path in sorted(partial.iterdir())}
        manifest = partial / MANIFEST
        manifest.write_text(json.dumps({"about": dict(about), "files": entries}, indent=1), "utf-8")
        _flush(manifest)
        _flush(partial)
        if folder.exists():  # damaged: moved away in one step, so that no process opens half of it
            aside = folder.with_name(f"{folder.name}.damaged-{os.getpid()}{PARTIAL}")
            folder.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)  # what a process has mapped is removed by a later sweep
        partial.rename(folder)
        _flush(folder.parent)
    except BaseException:  # Ctrl-C too: no partial folder remains
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _describe(path: Path) -> dict[str, Any]:
    _flush(path)
    found = path.stat()
    digest = _sampled(path) if found.st_size > FULL_HASH_BYTES else sha256(path)
    return {"bytes": found.st_size, "mtime_ns": found.st_mtime_ns, "sha256": digest}


def _flush(path: Path) -> None:
    """Write a file, or a folder's directory entries, to disk. Windows has no handles for folders."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep(root: Path, *, mine: str) -> None:
    """Remove the partial folders of killed processes: those whose lock is free."""
    for partial in root.glob("*" + PARTIAL):
        key = partial.name.removesuffix(PARTIAL).split(".damaged-")[0]
        if key == mine:
            shutil.rmtree(partial, ignore_errors=True)
            continue
        with suppress(Timeout), FileLock(root / (key + ".lock"), blocking=False):
            shutil.rmtree(partial, ignore_errors=True)


UNUSABLE = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT,
    errno.EISDIR,
}  # fmt: skip


def _explain(error: OSError, folder: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ModelError(
            f"no space left for the model cache in {folder.parent}: {error}\n"
            "hint: free some space, or set DRAFTWOOD_CACHE to a folder on a larger disk"
        )
    if error.errno in UNUSABLE:
        return ModelError(
            f"the model cache cannot be written in {folder.parent}: {error}\n"
            "hint: set DRAFTWOOD_CACHE to a folder you may write to"
        )
    return error

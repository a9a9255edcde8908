"""One file written whole or not at all, by one process at a time.

    STORE          the finished store, replaced in one step; who has the old one open keeps it
    STORE.partial  the one being written, by the process that holds STORE.lock

A kill leaves only a `.partial`, which the next build overwrites; a full disk or an error leaves nothing.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from draftwood.drafters.retrieval.stores.container import Kind, kind_of
from draftwood.errors import StoreError


@contextmanager
def replacing(path: Path, kind: Kind) -> Iterator[tuple[BinaryIO, Path]]:
    """The new file, open for reading and writing, and its path until it is finished. OSError inside becomes a StoreError;
    other errors pass through. Only a store of the same kind is replaced."""
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(path.name + ".lock"), blocking=False):
            _refuse_other_file(path, kind)
            try:
                with partial.open("w+b") as file:
                    yield file, partial
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
                _flush_folder(path.parent)
            except BaseException:  # Ctrl-C too
                partial.unlink(missing_ok=True)
                raise
    except Timeout:
        raise StoreError(f"another build is writing {path}\nhint: wait for it, or use another --out") from None
    except OSError as error:
        raise _explained(error, path) from error


def _refuse_other_file(path: Path, kind: Kind) -> None:
    if not path.exists():
        return
    if not path.is_file():
        raise StoreError(f"{path} is not a file\nhint: use another --out")
    with path.open("rb") as file:
        found = kind_of(file.read(len(kind.magic)))
    if found != kind:
        what = f"a {found.name}, not a {kind.name}" if found else "no datastore"
        raise StoreError(f"{path} exists and is {what}\nhint: use another --out, or remove it")


def _flush_folder(folder: Path) -> None:
    if os.name != "nt":  # Windows has no handles for folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _explained(error: OSError, path: Path) -> StoreError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    hint = "free some space, or use another --out" if full else "use another --out"
    return StoreError(f"{path} cannot be written: {error.strerror or error}\nhint: {hint}")

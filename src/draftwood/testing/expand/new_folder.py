"""A folder that is complete or absent: written beside its place, then renamed.

OUT.partial/        while it is made; after a kill the next run begins anew
OUT.partial.lock    held meanwhile
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from draftwood.errors import OptionError

PARTIAL = ".partial"


@contextmanager
def new_folder(out: Path, size: int) -> Iterator[Path]:
    """An empty folder to fill with about `size` bytes, which then becomes `out`. OptionError if it cannot be written, or if
    the disk has less room."""
    partial = out.with_name(out.name + PARTIAL)
    lock = FileLock(partial.with_name(partial.name + ".lock"))
    try:
        if out.exists() or out.is_symlink():
            raise OptionError(f"{out} exists already\nhint: the name of a new folder")
        if not out.parent.is_dir():
            raise OptionError(f"{out} cannot be written: there is no folder {out.parent}")
        lock.acquire(blocking=False)
    except Timeout:
        raise OptionError(f"another process is writing {out}\nhint: wait for it, or choose another name") from None
    except OSError as error:
        raise _refusal(out, error) from None
    try:
        shutil.rmtree(partial, ignore_errors=True)
        _check_room(out, size)
        partial.mkdir()
        yield partial
        for path in sorted(partial.rglob("*")):
            _flush(path)
        _flush(partial)
        partial.rename(out)
        _flush(out.parent)
    except OSError as error:
        raise _refusal(out, error) from error
    finally:  # Ctrl-C too
        shutil.rmtree(partial, ignore_errors=True)
        lock.release()
        Path(lock.lock_file).unlink(missing_ok=True)


def _check_room(out: Path, size: int) -> None:
    free = shutil.disk_usage(out.parent).free
    if free < size:
        raise OptionError(
            f"{out} needs {size / 1e9:.1f} GB, its disk has {free / 1e9:.1f} GB left\n"
            "hint: another disk, a smaller shape or fewer bits"
        )


def _refusal(out: Path, error: OSError) -> OptionError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OptionError(f"{out} cannot be written: its disk is full\nhint: free space, or another disk")
    return OptionError(f"{out} cannot be written: {error.strerror or error}")


def _flush(path: Path) -> None:
    """To disk. Windows has no handles for folders."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

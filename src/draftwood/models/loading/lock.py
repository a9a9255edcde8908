"""One lock file, held by one process or thread at a time.

The operating system drops the lock when its holder ends, however it ends, so a stale lock cannot exist.
The file itself is never removed: a second process may just have opened it.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _take(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _take(handle: int) -> bool:
        # flock belongs to the open file, not to the process: two threads of one process exclude each other as well.
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def locked(path: Path, *, wait: bool = True, pause: float = 0.05) -> Iterator[bool]:
    """Hold the lock at `path`; yields whether it is held. With `wait` it always is.

    Polling, not a blocking call, so that Ctrl-C ends the wait on every platform.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        held = _take(handle)
        while wait and not held:
            time.sleep(pause)
            held = _take(handle)
        yield held
    finally:
        os.close(handle)  # closing lets go of the lock

"""Small findings about a target, kept in the user's cache: the next process begins with what the first one found.

What was timed is kept with the cores that other processes took meanwhile. Times of a machine that was not quiet are measured
again at the next starts; of several such measurements the least disturbed is kept, and after a few it stays.
"""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from draftwood.core.protocols import Runner
from draftwood.drafters.nets.files.find import fingerprint
from draftwood.models.loading.folder_cache import cache_dir
from draftwood.sizing.cpu_use import BUSY

T = TypeVar("T")
TIMES = 5  # that something is measured beside busy processes before it stays as it is


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """What was timed. `taken`: cores that it needed and other processes used meanwhile; None: not known."""

    found: T
    taken: float | None = None

    @property
    def quiet(self) -> bool:
        """Whether the times can be believed, as far as it is known."""
        return self.taken is None or self.taken < BUSY


def remembered(target: Runner, folder: str, key: str, read: Callable[[Any], T], find: Callable[[], T]) -> T:
    """What a file in `folder` holds under this key, else what `find` finds. `read` takes what JSON made of it and raises
    ValueError or TypeError for anything else. Nothing is kept of targets that cannot be told apart."""
    file = _file(target, folder, key)
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return read(_record(file)["found"])
    found = find()
    _write(file, {"of": key, "found": found})
    return found


def remembered_times(
    target: Runner, folder: str, key: str, read: Callable[[Any], T], find: Callable[[], Timed[T]]
) -> Timed[T]:
    """The same for what depends on a clock."""
    file, before, count = _file(target, folder, key), None, 0
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        record = _record(file)
        # A record that does not say how quiet the machine was may be of any.
        before, count = Timed(read(record["found"]), _cores(record["taken"])), int(record["measured"])
        if before.quiet or count >= TIMES:
            return before
    found = find()
    if before is not None and (before.taken or 0.0) < (found.taken or 0.0):
        found = before
    _write(file, {"of": key, "found": found.found, "taken": found.taken, "measured": count + 1})
    return found


def _cores(taken: Any) -> float | None:
    return None if taken is None else float(taken)


def _file(target: Runner, folder: str, key: str) -> Path | None:
    mark = fingerprint(target)
    return cache_dir() / folder / f"{mark}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json" if mark else None


def _record(file: Path | None) -> dict[str, Any]:
    if file is None:
        raise FileNotFoundError
    return json.loads(file.read_text("utf-8"))


def _write(file: Path | None, record: dict[str, object]) -> None:
    """By one rename, so that no process reads half of it. A cache that cannot be written costs only the next start."""
    if file is None:
        return
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(record), "utf-8")
        part.replace(file)

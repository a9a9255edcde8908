"""Small findings about a target, kept in the user's cache: the next process begins with what the first one found."""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from draftwood.core.protocols import Runner
from draftwood.drafters.nets.files.find import fingerprint
from draftwood.models.loading.folder_cache import cache_dir

T = TypeVar("T")


def remembered(target: Runner, folder: str, key: str, read: Callable[[Any], T], find: Callable[[], T]) -> T:
    """What a file in `folder` holds under this key, else what `find` finds. `read` takes what JSON made of it and raises
    ValueError or TypeError for anything else. Nothing is kept of targets that cannot be told apart."""
    mark = fingerprint(target)
    file = cache_dir() / folder / f"{mark}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json" if mark else None
    if file is not None:
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return read(json.loads(file.read_text("utf-8"))["found"])
    found = find()
    if file is not None:
        _write(file, {"of": key, "found": found})
    return found


def _write(file: Path, record: dict[str, object]) -> None:
    """By one rename, so that no process reads half of it. A cache that cannot be written costs only the next start."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(record), "utf-8")
        part.replace(file)

"""A disk that is full from some write on."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def fail_write(monkeypatch: pytest.MonkeyPatch, name: str, step: int) -> None:
    """Write number `step` to a file of this name fails."""
    real, count = Path.open, iter(range(10_000))

    def opened(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        file = real(path, mode, *args, **options)
        return Full(file, count, step) if path.name == name and "w" in mode else file

    monkeypatch.setattr(Path, "open", opened)


class Full:
    """A file whose write number `step` fails."""

    def __init__(self, file: Any, count: Iterator[int], step: int) -> None:
        self.file, self.count, self.step = file, count, step

    def __enter__(self) -> "Full":
        return self

    def __exit__(self, *error: Any) -> None:
        self.file.close()

    def write(self, data: bytes) -> int:
        if next(self.count) == self.step:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

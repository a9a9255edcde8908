"""log.jsonl: what a run has told so far. A resumed run cuts it back to its checkpoint, so no step is told twice.

{"step": 30, "tokens": 61234, "losses": {...}, ...}           a step
{"step": 40, "recipe": "...", "tokens_per_pass": 1.9, ...}    a look through the engine, after so many steps
{"recipe": "...", "made": {...}}                              what a stage without a loop made
"""

import json
from pathlib import Path
from typing import Any

from draftwood.errors import TrainError
from draftwood.train.loop.checkpoint import replace_file

FILE = "log.jsonl"


def read(path: Path) -> list[dict[str, Any]]:
    """Entries of a log; a line that a kill tore is left out."""
    found: list[dict[str, Any]] = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            found.append(entry)
    return found


class Log:
    """Entries in memory and on disk."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.entries: list[dict[str, Any]] = []

    def reopen(self, step: int) -> None:
        """What was told up to a checkpoint of `step` steps; what came after it will be told again."""
        self.entries = [e for e in read(self.path) if _before(e, step)]
        if self.path.exists():
            replace_file(self.path, "".join(json.dumps(e) + "\n" for e in self.entries).encode())

    def add(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise TrainError(f"{self.path} could not be written: {error.strerror or error}\nhint: make room") from None

    def looks(self, recipe: str) -> list[dict[str, Any]]:
        """Looks at one recipe, in order."""
        return [e for e in self.entries if e.get("recipe") == recipe and "tokens_per_pass" in e]


def _before(entry: dict[str, Any], step: int) -> bool:
    at = entry.get("step")
    return isinstance(at, int) and (at < step if "losses" in entry else at <= step)

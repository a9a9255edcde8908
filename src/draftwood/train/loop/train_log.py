"""log.jsonl, the log of a training run, and its curves. A resumed run truncates the log to its checkpoint.

{"step": 30, "tokens": 61234, "losses": {...}, ...}           one step
{"step": 40, "recipe": "...", "tokens_per_pass": 1.9, ...}    acceptance measured after 40 steps
{"recipe": "...", "made": {...}}                              output of a stage without gradient steps
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from draftwood.errors import TrainError
from draftwood.train.loop.checkpoint import replace_file

FILE = "log.jsonl"


def read(path: Path) -> list[dict[str, Any]]:
    """Entries of a log. Incomplete lines of killed runs are skipped."""
    found: list[dict[str, Any]] = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    for line in lines:
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                found.append(entry)
    return found


class Log:
    """The entries, in memory and on disk."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.entries: list[dict[str, Any]] = []

    def reopen(self, step: int) -> None:
        """Keeps the entries up to a checkpoint after `step` steps; later ones will be written again."""
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

    def measurements(self, recipe: str) -> list[dict[str, Any]]:
        """Measured acceptance of one recipe, in order."""
        return [e for e in self.entries if e.get("recipe") == recipe and "tokens_per_pass" in e]


def _before(entry: dict[str, Any], step: int) -> bool:
    at = entry.get("step")
    return isinstance(at, int) and (at < step if "losses" in entry else at <= step)


def draw(folder: Path) -> Path | None:
    """Draws losses and acceptance as curves.svg. None if matplotlib is not installed or no step was logged."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    entries = read(folder / FILE)
    steps = [e for e in entries if "losses" in e]
    if not steps:
        return None
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for name in sorted({n for e in steps for n in e["losses"]}):
        points = [(e["tokens"] / 1e6, e["losses"][name]) for e in steps if name in e["losses"]]
        left.plot(*zip(*points, strict=True), label=name, linewidth=0.8)
    left.set(xlabel="million tokens seen", ylabel="loss")
    measured: dict[str, list[Any]] = {}
    for e in entries:
        if "tokens_per_pass" in e:
            measured.setdefault(e["recipe"], []).append((e["step"], e["tokens_per_pass"]))
    for name, points in measured.items():
        right.plot(*zip(*points, strict=True), marker="o", label=name)
    right.set(xlabel="step", ylabel="tokens per pass, held-out prompts")
    for axes in (left, right):
        if axes.lines:
            axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    figure.tight_layout()
    path = folder / "curves.svg"
    figure.savefig(path)
    pyplot.close(figure)
    return path

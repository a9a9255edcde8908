"""Results log: a run's answers on disk, one JSON line each, so that a run that was stopped continues where it ended.

    {"settings": {...}}                                    first line: a run continues only with equal settings
    {"provenance": {...}}                                  command, machine and its load, once per start
    {"facts": {...}}                                       versions of all methods, once per start
    {"answer": {...}}  {"answer": {...}}  ...              all methods' answers to one question
    {"question": "81", "machine": {...}}                   that question is done

A reader ignores lines and keys that it does not know, and does without those that an older log lacks.
A question counts when its last line is present. A killed run leaves answers without it, or a half-written line: these are
removed, and the question is asked again.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from draftwood.bench.spec.answer import Answer
from draftwood.errors import OptionError


class ResultsLog:
    """Answers by question, in memory and, with a path, on disk."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.path = path
        self.settings = json.loads(json.dumps(settings))  # as it is read back: tuples become lists
        self.fresh = fresh
        self.done: dict[str, list[Answer]] = {}
        self.machine: dict[str, dict[str, Any]] = {}
        self.facts: dict[str, Any] = {}
        self.provenance: dict[str, Any] = {}  # of the latest start; empty in older logs

    @classmethod
    def load(cls, path: Path) -> "ResultsLog":
        """A log of whatever settings, to be read only: the file is not changed, even while a run is writing it."""
        log = cls(None, {})
        try:
            log._read(path)
        except OSError as error:
            raise OptionError(f"{path} cannot be read: {error.strerror or error}") from None
        if not log.done:
            raise OptionError(f"{path} holds no finished question\nhint: the results log (.jsonl) of bench spec --out")
        return log

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One run at a time: two would disturb each other's times and write every question twice."""
        if self.path is None:
            yield
            return
        try:
            lock = FileLock(self.path.with_suffix(".lock")).acquire(blocking=False)
        except Timeout:
            raise OptionError(f"another run is writing {self.path}\nhint: wait for it, or use another --out") from None
        with lock:
            yield

    def open(self) -> int:
        """Read the log, or begin one. Returns how many questions are done. OptionError if the settings differ."""
        if self.path is None:
            return 0
        if self.fresh or not self.path.exists() or not (good := self._read(self.path)):
            self.path.write_text(json.dumps({"settings": self.settings}) + "\n")
        elif good < self.path.stat().st_size:
            with self.path.open("r+b") as file:
                file.truncate(good)
        return len(self.done)

    def add(self, question: str, answers: Sequence[Answer], machine: Mapping[str, Any]) -> None:
        """Record one finished question, in one write."""
        self.done[question], self.machine[question] = list(answers), dict(machine)
        self._append(*({"answer": a.record()} for a in answers), {"question": question, "machine": dict(machine)})

    def begin(self, provenance: Mapping[str, Any]) -> None:
        """Record where the answers that follow are measured."""
        self.provenance = dict(provenance)
        self._append({"provenance": self.provenance})

    def note(self, facts: Mapping[str, Any]) -> None:
        """Record what the methods reported when they were opened."""
        self.facts = dict(facts)
        self._append({"facts": self.facts})

    def _append(self, *lines: dict[str, Any]) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines))

    def answers(self) -> list[Answer]:
        return [answer for answers in self.done.values() for answer in answers]

    def _read(self, path: Path) -> int:
        """Read the finished questions of a file. Returns its length up to the last of them; 0 for an empty file."""
        data = path.read_bytes()
        waiting: list[Answer] = []
        good = end = 0
        for number, raw in enumerate(data.splitlines(keepends=True), start=1):
            end += len(raw)
            line = _parsed(raw)
            if line is None:
                if end == len(data):
                    break  # half-written
                raise OptionError(f"{path}, line {number}: not a results log\nhint: --fresh starts over")
            if number == 1:
                self._compare(path, line.get("settings"))
                good = end
            elif "provenance" in line:
                self.provenance, waiting, good = line["provenance"], [], end
            elif "facts" in line:
                self.facts, waiting, good = line["facts"], [], end
            elif "answer" in line:
                waiting.append(Answer.of(line["answer"]))
            elif "question" in line:
                self.done[line["question"]], self.machine[line["question"]] = waiting, line["machine"]
                waiting, good = [], end
        return good

    def _compare(self, path: Path, before: Any) -> None:
        if not isinstance(before, dict):
            raise OptionError(f"{path}: not a results log\nhint: another --out, or --fresh")
        if self.path is None:  # to be read only
            self.settings = before
            return
        pairs = {key: (before.get(key), self.settings.get(key)) for key in {**self.settings, **before}}
        changed = [f"{key}: {then!r} then, {now!r} now" for key, (then, now) in pairs.items() if then != now]
        if changed:
            raise OptionError(
                f"{path} was begun with other settings\n  " + "\n  ".join(changed) + "\n"
                "hint: equal settings continue it, --fresh starts over, another --out keeps both"
            )


def _parsed(raw: bytes) -> dict[str, Any] | None:
    if not raw.endswith(b"\n"):
        return None
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None

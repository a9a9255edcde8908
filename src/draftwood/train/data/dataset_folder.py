"""The folder of a data set while it is written. A run killed at any moment loses the last few dialogues and repeats none.

    train.jsonl, heldout.jsonl     append only
    record.json                    replaced atomically, after the lines it counts are on disk

The record holds the lengths of both files and the number of the next dialogue. Resuming truncates the files to these lengths
and makes the dialogues after them again.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from draftwood.errors import OptionError
from draftwood.train.data.dialogues import HELDOUT, RECORD, TRAIN
from draftwood.train.loop.checkpoint import replace_file


@dataclass(frozen=True, slots=True)
class Line:
    """One finished dialogue: tokens, the spans that the target wrote, and the key of its first user turn."""

    kind: str
    tokens: list[int]
    answers: list[tuple[int, int]]
    key: str

    @property
    def num_answer_tokens(self) -> int:
        return sum(stop - start for start, stop in self.answers)


@dataclass(slots=True)
class Outcome:
    """The result of one script, so far or whole: its dialogues in the order they were made, and the reasons why others were
    dropped. A later dialogue may be about an earlier one. `key` is that of the first user turn, if there was one."""

    key: str = ""
    held: bool = False
    lines: list[Line] = field(default_factory=list[Line])
    dropped: list[str] = field(default_factory=list[str])
    shortened: int = 0

    @property
    def num_answer_tokens(self) -> int:
        return sum(line.num_answer_tokens for line in self.lines)


@dataclass
class Totals:
    """The counts of the record, by its names and in its order."""

    lines: dict[str, int] = field(default_factory=lambda: {"train": 0, "heldout": 0})
    kinds: dict[str, dict[str, int]] = field(default_factory=dict)
    heldout_dialogues: Counter[str] = field(default_factory=Counter)  # by kind
    dropped: Counter[str] = field(default_factory=Counter)
    loops_shortened: int = 0
    answer_tokens: int = 0
    tokens_written: int = 0  # by the target, including user turns and dropped dialogues
    seconds: float = 0.0
    next: int = 0
    bytes: dict[str, int] = field(default_factory=lambda: {TRAIN: 0, HELDOUT: 0})


class Folder:
    """`identity` must be equal in every run that writes the folder; `facts` are recorded and may change."""

    def __init__(self, path: Path, identity: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        self.path = path
        self.identity, self.facts = json.loads(json.dumps(identity)), dict(facts)
        self.totals = Totals()
        self.seen: set[str] = set()
        self._waiting: dict[str, list[str]] = {TRAIN: [], HELDOUT: []}

    @contextmanager
    def open(self) -> Iterator["Folder"]:
        """Locks the folder and loads its record. OptionError if its identity differs."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path / ".lock", blocking=False):
                self._resume()
                yield self
        except Timeout:
            raise OptionError(f"another run is writing {self.path}\nhint: wait for it, or use another --out") from None
        except OSError as error:
            raise OptionError(f"{self.path} cannot be written: {error.strerror or error}") from None

    def add(self, outcome: Outcome) -> None:
        """Adds the outcome of the next script, in memory until `save`."""
        totals = self.totals
        totals.next += 1
        totals.loops_shortened += outcome.shortened
        if outcome.key in self.seen:  # scripts check too, but an earlier number may have finished since
            totals.dropped["duplicate"] += 1
            return
        totals.dropped.update(outcome.dropped)
        for line in outcome.lines:
            if line.key in self.seen:
                totals.dropped["duplicate"] += 1
                return  # later dialogues are about this one
            self.seen.add(line.key)
            self._count(line, outcome.held)
            entry = {"key": line.key, "kind": line.kind, "tokens": line.tokens, "answers": line.answers}
            self._waiting[HELDOUT if outcome.held else TRAIN].append(json.dumps(entry, separators=(",", ":")) + "\n")

    def _count(self, line: Line, held: bool) -> None:
        count = self.totals.kinds.setdefault(line.kind, {"dialogues": 0, "prompt_tokens": 0, "answer_tokens": 0})
        count["dialogues"] += 1
        count["prompt_tokens"] += len(line.tokens) - line.num_answer_tokens
        count["answer_tokens"] += line.num_answer_tokens
        self.totals.answer_tokens += line.num_answer_tokens
        self.totals.lines["heldout" if held else "train"] += 1
        if held:
            self.totals.heldout_dialogues[line.kind] += 1

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def save(self) -> None:
        """Writes the dialogues, then the record that counts them."""
        for name, lines in self._waiting.items():
            with (self.path / name).open("ab") as file:
                file.truncate(self.totals.bytes[name])  # removes lines of a save that failed
                file.write("".join(lines).encode())
                file.flush()
                os.fsync(file.fileno())
                self.totals.bytes[name] = file.tell()
            lines.clear()
        replace_file(self.path / RECORD, json.dumps(self.record(), indent=1).encode())

    def record(self) -> dict[str, Any]:
        return {**self.identity, **self.facts, **vars(self.totals), "seconds": round(self.totals.seconds, 1)}

    def _resume(self) -> None:
        record = self.path / RECORD
        if not record.exists():
            for name in (TRAIN, HELDOUT):
                file = self.path / name
                if file.exists() and file.stat().st_size:
                    raise OptionError(f"{file} exists without a {RECORD}\nhint: use another --out, or remove it")
            self.save()  # records the identity at once
            return
        try:
            found = json.loads(record.read_bytes())
            self._compare(found)
            _check(found)
            self.totals = Totals(**{each.name: found[each.name] for each in fields(Totals)})
            self.totals.dropped = Counter(found["dropped"])
            self.totals.heldout_dialogues = Counter(found["heldout_dialogues"])
            for name in (TRAIN, HELDOUT):
                self._cut(self.path / name, self.totals.bytes[name])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, OptionError):
                raise
            raise OptionError(f"{record} is not a record of training data: {error}\nhint: use another --out") from None

    def _compare(self, found: dict[str, Any]) -> None:
        pairs = {key: (found.get(key), value) for key, value in self.identity.items()}
        changed = [f"  {key}: was {then!r}, now {now!r}" for key, (then, now) in pairs.items() if then != now]
        if changed:
            raise OptionError(
                f"{self.path} holds data of another run\n" + "\n".join(changed) + "\n"
                "hint: the same settings resume it; another --out keeps both"
            )

    def _cut(self, file: Path, size: int) -> None:
        """Truncates a file to its recorded size and loads the keys of its dialogues."""
        if (file.stat().st_size if file.exists() else 0) < size:
            raise OptionError(f"{file} is shorter than its {RECORD} says: {size} bytes\nhint: use another --out")
        os.truncate(file, size)
        with file.open("rb") as stream:
            self.seen.update(json.loads(line)["key"] for line in stream)


def _check(found: dict[str, Any]) -> None:
    """ValueError for the first invalid count of a record. Files are truncated by it, so it is checked first."""
    counts = {
        **{key: found[key] for key in ("next", "answer_tokens", "tokens_written", "loops_shortened")},
        **{f"bytes of {name}": found["bytes"][name] for name in (TRAIN, HELDOUT)},
        **{f"lines of {name}": found["lines"][name] for name in ("train", "heldout")},
        **{f"{key} {name}": n for key in ("lines", "heldout_dialogues", "dropped") for name, n in found[key].items()},
        **{f"{kind} {name}": n for kind, each in found["kinds"].items() for name, n in each.items()},
    }
    for name, count in counts.items():
        if type(count) is not int or count < 0:
            raise ValueError(f"{name} is {count!r}")
    if set(found["bytes"]) != {TRAIN, HELDOUT} or not isinstance(found["seconds"], int | float):
        raise ValueError(f"bytes of {sorted(found['bytes'])}, seconds {found['seconds']!r}")
    if any({"dialogues", "prompt_tokens", "answer_tokens"} - set(each) for each in found["kinds"].values()):
        raise ValueError(f"its kinds are incomplete: {found['kinds']!r}")

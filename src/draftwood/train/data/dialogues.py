"""The format of training data: dialogues as token ids, with the spans that the target wrote.

    folder/train.jsonl  heldout.jsonl  record.json        as `draftwood train data` writes them
    {"kind": "chat", "tokens": [1, 9690, ...], "answers": [[31, 96]]}                          one dialogue a line
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}       users' own data

Invalid lines are skipped and counted, and the first few are reported.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.errors import DraftwoodError, OptionError
from draftwood.models.loading.tokenizer import Tokenizer

TRAIN, HELDOUT, RECORD = "train.jsonl", "heldout.jsonl", "record.json"
NAMED = 5  # invalid lines that are reported; the others are counted


@dataclass(frozen=True, slots=True, eq=False)
class Dialogue:
    """One conversation. `answers` are the [start, stop) spans that the target wrote, in order and not empty."""

    tokens: np.ndarray  # int32
    answers: tuple[tuple[int, int], ...]
    kind: str = ""

    @property
    def num_answer_tokens(self) -> int:
        return sum(stop - start for start, stop in self.answers)


@dataclass(frozen=True, slots=True)
class Dialogues:
    """The dialogues of one file. `broken` lists the first invalid lines as (number, reason)."""

    path: Path
    items: tuple[Dialogue, ...]
    num_broken: int = 0
    broken: tuple[tuple[int, str], ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Dialogue]:
        return iter(self.items)

    def __getitem__(self, index: int) -> Dialogue:
        return self.items[index]

    @property
    def num_answer_tokens(self) -> int:
        return sum(d.num_answer_tokens for d in self.items)

    def complaint(self) -> str | None:
        """A message about invalid lines; None if there are none."""
        if not self.num_broken:
            return None
        lines = [f"  line {number}: {reason}" for number, reason in self.broken]
        if self.num_broken > len(lines):
            lines.append(f"  and {self.num_broken - len(lines)} more")
        return "\n".join([f"{self.path}: {self.num_broken} lines are not dialogues and are left out", *lines])


def read(path: Path | str, tokenizer: Tokenizer, vocab_size: int, *, split: str = TRAIN) -> Dialogues:
    """The dialogues of a .jsonl or .jsonl.gz file, or of a folder's `split`. OptionError if there is none."""
    file = Path(path)
    if file.is_dir():
        file = file / split
        if not file.is_file():
            raise OptionError(f"{path} holds no {split}\nhint: `draftwood train data --out {path}` makes one")
    elif not file.exists():
        raise OptionError(
            f"{path} cannot be read: No such file or directory\n"
            "hint: `draftwood train data --out FOLDER` writes training data"
        )
    items: list[Dialogue] = []
    broken: list[tuple[int, str]] = []
    count = 0
    for number, line in enumerate(lines_of(file), start=1):
        if not line.strip():
            continue
        try:
            items.append(parse(line, tokenizer, vocab_size))
        except ValueError as error:
            count += 1
            if len(broken) < NAMED:
                broken.append((number, str(error).partition("\n")[0]))
    found = Dialogues(file, tuple(items), count, tuple(broken))
    if not items:
        why = found.complaint() or f"{file} is empty"
        strange = bool(broken) and all(reason.startswith("token ") for _, reason in broken)
        other = (
            f"the data is of another vocabulary; make some for this target: `draftwood train data --out {file.parent}`"
        )
        one = 'one JSON object a line: {"tokens": [...], "answers": [[start, stop]]}'
        if (file.parent / RECORD).is_file() and not broken:
            one = f"no dialogue is finished yet; `draftwood train data --out {file.parent}` resumes"
        raise OptionError(f"{why}\nhint: {other if strange else one}")
    return found


def lines_of(file: Path) -> Iterator[bytes]:
    """The lines of a file, gzipped or not. OptionError if it cannot be read."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            yield from stream
    except (OSError, EOFError, zlib.error) as error:
        raise OptionError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def parse(line: bytes, tokenizer: Tokenizer, vocab_size: int) -> Dialogue:
    """Parses one line. ValueError says what is wrong."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise ValueError(f"it is a {type(entry).__name__}, not an object")
    kind = entry.get("kind", "")
    if not isinstance(kind, str):
        raise ValueError(f"its kind is not a string: {kind!r}")
    if "messages" in entry:
        tokens, answers = _from_messages(entry["messages"], tokenizer)
    else:
        tokens, answers = _ids(entry.get("tokens")), entry.get("answers")
    if not len(tokens):
        raise ValueError("it has no tokens")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ValueError(f"token {int(tokens.max() if tokens.min() >= 0 else tokens.min())} is not among {vocab_size}")
    return Dialogue(tokens.astype(np.int32), _spans(answers, len(tokens)), kind)


def _ids(tokens: Any) -> np.ndarray:
    if not isinstance(tokens, list):
        raise ValueError('it has neither "messages" nor a list of "tokens"')
    try:
        found = np.asarray(tokens if tokens else np.zeros(0, dtype=np.int64))
    except (ValueError, OverflowError):
        raise ValueError('its "tokens" are not a list of numbers') from None
    if found.ndim != 1 or found.dtype.kind != "i":
        raise ValueError('its "tokens" are not a list of integers')
    return found


def _spans(answers: Any, size: int) -> tuple[tuple[int, int], ...]:
    """Checks that spans are in order, disjoint, within the tokens and not empty."""
    if not isinstance(answers, list) or not answers:
        raise ValueError('it has no "answers"')
    spans: list[tuple[int, int]] = []
    last = 0
    for span in answers:
        if not isinstance(span, list | tuple) or len(span) != 2 or not all(type(x) is int for x in span):
            raise ValueError(f"an answer is a pair [start, stop], not {span!r}")
        start, stop = span
        if not last <= start < stop <= size:
            raise ValueError(f"answer {[start, stop]} is outside its {size} tokens or overlaps another answer")
        spans.append((start, stop))
        last = stop
    return tuple(spans)


def _from_messages(messages: Any, tokenizer: Tokenizer) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Token ids by the chat template, and the spans of the assistant's messages with their end-of-turn tokens."""
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise ValueError('its "messages" are not a list of objects')
    if any(not isinstance(m.get("content"), str) for m in messages):
        raise ValueError("the content of a message is not a string")
    try:
        text = tokenizer.render(messages, add_generation_prompt=False)
        places = list(_places(messages, tokenizer, text))
    except DraftwoodError as error:
        raise ValueError(str(error)) from None
    try:
        found = tokenizer.backend.encode(text, add_special_tokens=False)
    except TypeError:
        raise ValueError("a message holds a lone surrogate") from None
    ids, starts = np.asarray(found.ids), np.asarray([start for start, _ in found.offsets])
    spans: list[tuple[int, int]] = []
    for start, stop in places:
        first, last = (int(x) for x in np.searchsorted(starts, [start, stop]))
        if last < len(ids) and int(ids[last]) in tokenizer.eos_token_ids:
            last += 1
        spans.append((first, last))
    return ids, spans


def _places(messages: list[dict[str, Any]], tokenizer: Tokenizer, text: str) -> Iterator[tuple[int, int]]:
    """[start, stop) of each assistant message in the rendered text."""
    at = 0
    for index, message in enumerate(messages):
        content = message["content"].strip()
        if message.get("role") != "assistant":
            continue
        if not content:
            raise ValueError("an assistant message is empty")
        before = tokenizer.render(messages[:index], add_generation_prompt=True) if index else ""
        start = text.find(content, len(before) if text.startswith(before) else at)  # it may occur earlier too
        if start < 0:
            raise ValueError("the chat template changes the assistant's message")
        at = start + len(content)
        yield start, at

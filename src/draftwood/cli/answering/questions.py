"""Questions to answer, from arguments, a pipe or a file of JSON lines.

A bad line of a file becomes a question with an `error`, so that the others are still answered.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from draftwood.errors import OptionError


@dataclass(frozen=True, slots=True)
class Question:
    """User messages to be answered in turn. `labels` come from the file and go into every answer's record. `predictions`: of
    the answers, one for each turn; None: the file has none."""

    turns: tuple[str, ...] = ()
    labels: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None
    tenant: str | None = None
    predictions: tuple[str | None, ...] | None = None

    def options(self, turn: int) -> dict[str, Any]:
        """Sampling options of one turn that the file gives."""
        tenant = {} if self.tenant is None else {"tenant": self.tenant}
        return tenant if self.predictions is None else {**tenant, "prediction": self.predictions[turn]}


def gather(prompts: Sequence[str], file: Path | None, *, raw: bool = False) -> list[Question]:
    """The questions of one command. OptionError if there are none, or if they come from two places."""
    if prompts and file is not None:
        raise OptionError(f"prompts are given as arguments and in {file}\nhint: choose one")
    if file is not None:
        return _from_file(file)
    if prompts:
        return [Question((_checked(prompt, raw),)) for prompt in prompts]
    if sys.stdin is None or sys.stdin.isatty():
        raise OptionError("no prompt\nhint: give one as an argument, on stdin, or many with --file")
    return [Question((_checked(decoded(sys.stdin.buffer.read(), "stdin").removesuffix("\n"), raw),))]


def _checked(prompt: str, raw: bool = False) -> str:
    if not (prompt if raw else prompt.strip()):
        raise OptionError("the prompt is empty\nhint: give at least one word")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise OptionError(f"the prompt is not valid text: {prompt[:40]!r}\nhint: is it UTF-8?") from None
    return prompt


def decoded(data: bytes, where: str) -> str:
    """UTF-8 as text. OptionError names the place of a byte that is none."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise OptionError(f"{where} is not UTF-8: byte {error.start} is {data[error.start]:#x}") from None


def _from_file(file: Path) -> list[Question]:
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise OptionError(f"{file} cannot be read: {error.strerror or error}") from None
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    found = [parse(line, number) for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise OptionError(f'{file} holds no questions\nhint: one JSON object a line, {{"turns": ["..."]}}')
    return found


def parse(line: bytes, number: int) -> Question:
    """One line of a question file. Never raises: what is wrong with it is its `error`."""
    labels: dict[str, Any] = {}
    try:
        entry = json.loads(decoded(line, "it"), parse_constant=_refuse, parse_float=_finite)
        if not isinstance(entry, dict):
            raise OptionError(f"it is no object but a {type(entry).__name__}")
        labels = {key: entry[key] for key in ("question_id", "category") if key in entry}
        turns = _turns(entry)
        return Question(turns, labels, tenant=_tenant(entry), predictions=_predictions(entry, len(turns)))
    except json.JSONDecodeError as error:
        problem = f"it is not JSON: {error.msg} at column {error.colno}"
    except RecursionError:
        problem = "it is nested too deeply"
    except (OptionError, ValueError) as error:  # ValueError: a number with thousands of digits
        problem = str(error)
    return Question(labels=labels, error=f"line {number}: {problem}")


def _refuse(word: str) -> None:
    raise OptionError(f"it is not JSON: {word} is no number")


def _finite(text: str) -> float:
    if not isfinite(float(text)):
        raise OptionError(f"the number {text} is too large")
    return float(text)


def _turns(entry: dict[str, Any]) -> tuple[str, ...]:
    turns = entry["turns"] if "turns" in entry else [entry["prompt"]] if "prompt" in entry else None
    if turns is None:
        raise OptionError('it has neither "turns" nor "prompt"')
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise OptionError('"turns" must be a list of texts, "prompt" a text')
    return tuple(_checked(turn) for turn in turns)


def _tenant(entry: dict[str, Any]) -> str | None:
    tenant = entry.get("tenant")
    if tenant is not None and not isinstance(tenant, str):
        raise OptionError('"tenant" must be a text')
    return tenant


def _predictions(entry: dict[str, Any], turns: int) -> tuple[str | None, ...] | None:
    """A text where there is one turn, or a list with a text or null for each."""
    given = entry.get("prediction")
    if given is None:
        return None
    each = given if isinstance(given, list) else [given]
    if len(each) != turns or not all(text is None or isinstance(text, str) for text in each):
        raise OptionError('"prediction" must be a text, or a list with a text or null for each turn')
    return tuple(each)

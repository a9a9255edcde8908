"""Answers as JSON lines: nothing else goes to stdout, and each line is written as soon as it is ready."""

import json
import sys
from typing import TYPE_CHECKING, Any

from draftwood.cli.questions import Question

if TYPE_CHECKING:
    from draftwood.results import Result


def emit(record: dict[str, Any]) -> None:
    """ASCII, so that no encoding and no line separator inside a text can break the line."""
    sys.stdout.write(json.dumps(record, allow_nan=False) + "\n")
    sys.stdout.flush()


def answered(question: Question, turn: int, result: "Result") -> dict[str, Any]:
    """One answered turn: what the file says of the question, then `Result.to_dict`, with the user's words as the prompt."""
    labels = _labels(question, turn)
    return {**labels, **result.to_dict(), **labels}


def failed(question: Question, turn: int, recipe: str, error: str) -> dict[str, Any]:
    """A turn that could not be answered, with what is known of it."""
    return {**_labels(question, turn), "recipe": recipe, "error": error}


def _labels(question: Question, turn: int) -> dict[str, Any]:
    prompt = {"prompt": question.turns[turn]} if turn < len(question.turns) else {}
    return {**question.labels, "turn": turn, **prompt}

"""Answers as JSON lines: everything a program needs, nothing else on stdout, each line written when it is ready."""

import json
import math
import sys
from typing import TYPE_CHECKING, Any

from draftwood.cli.questions import Question

if TYPE_CHECKING:
    from draftwood.llm import Result


def emit(record: dict[str, Any]) -> None:
    """ASCII, so that no encoding and no line separator inside a text can break the line."""
    sys.stdout.write(json.dumps(record, allow_nan=False) + "\n")
    sys.stdout.flush()


def answered(question: Question, turn: int, result: "Result") -> dict[str, Any]:
    """One answered turn."""
    stats = result.stats
    record: dict[str, Any] = {
        **_labels(question, turn),
        "recipe": result.recipe,
        "backend": result.backend,
        "text": result.text,
        "tokens": list(result.tokens),
        "finish_reason": result.finish_reason,
        "lossless": result.lossless,
        "seed": result.seed,
        "prompt_tokens": result.prompt_tokens,
        "seconds": result.seconds,
        "stats": {
            "target_passes": stats.target_passes,
            "tokens_per_pass": result.tokens_per_pass,
            "tokens_per_second": result.tokens_per_second,
            "acceptance_by_position": stats.acceptance_by_position,
            "rounds_all": stats.rounds_all,
            "rounds_some": stats.rounds_some,
            "rounds_none": stats.rounds_none,
            "draft_tokens": stats.draft_tokens,
            "disabled": stats.disabled,
            "cached_tokens": stats.cached_tokens,
        },
    }
    if result.logprobs is not None:
        record["logprobs"] = [
            {"token": token, "logprob": _finite(value), "top": [[other, _finite(x)] for other, x in best]}
            for token, (value, best) in zip(result.tokens, result.logprobs, strict=True)
        ]
    if result.error is not None:
        record["error"] = result.error
    return record


def failed(question: Question, turn: int, recipe: str, error: str) -> dict[str, Any]:
    """A turn that could not be answered, with what is known of it."""
    return {**_labels(question, turn), "recipe": recipe, "error": error}


def _labels(question: Question, turn: int) -> dict[str, Any]:
    said = {"prompt": question.turns[turn]} if turn < len(question.turns) else {}
    return {**question.labels, "turn": turn, **said}


def _finite(value: float) -> float | None:
    """JSON has no infinity; a forbidden token has no log-probability."""
    return value if math.isfinite(value) else None

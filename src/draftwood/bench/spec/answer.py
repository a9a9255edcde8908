"""Answer: the record of one method answering one question. One line of the results log."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

IDENTICAL, NEAR, DIFFERS = "identical", "near tie", "differs"
REFERENCE = "reference"  # plain decoding itself, with which the others are compared
UNJUDGED = "not judged"  # a lossy recipe, random numbers of its own, or no plain answer to compare with


PROMPT_START = 240  # characters of a question that an answer carries


@dataclass(slots=True)
class Answer:
    """Times are measured inside the process that answers, so they contain no communication."""

    method: str
    question: str
    category: str
    task: str
    prompt_tokens: int
    prompt: str = ""  # the start of the question, for reports; empty in older logs
    tokens: list[int] = field(default_factory=list[int])
    emitted: int = 0  # tokens as the method counts them, the end token included
    seconds: float = 0.0  # request to last token
    first_seconds: float = 0.0  # request to first token
    decode_seconds: float = 0.0  # first to last token
    passes: int | None = None  # target passes that emitted; None: not reported
    drafted: int | None = None
    accepted: int | None = None
    drafted_by_position: list[int] = field(default_factory=list[int])
    accepted_by_position: list[int] = field(default_factory=list[int])
    rounds: list[int] = field(default_factory=list[int])  # that accepted all, some, none of their draft
    parts: dict[str, float] = field(default_factory=dict[str, float])  # seconds of the rounds after the first token
    finish: str = ""
    counted: str = ""  # how the tokens were counted
    status: str = UNJUDGED
    why: str = ""  # reason for the status
    compared: int = 0  # tokens up to and including the first difference from plain decoding
    same_text: bool | None = None  # equal to plain decoding's; for peers, whose arithmetic differs, information only
    error: str | None = None

    @property
    def good(self) -> bool:
        return self.error is None

    @property
    def speed(self) -> float:
        """Tokens per second, from the request on."""
        return self.emitted / self.seconds if self.seconds > 0 else 0.0

    @property
    def prompt_speed(self) -> float:
        """Prompt tokens per second, up to the first token of the answer."""
        return self.prompt_tokens / self.first_seconds if self.first_seconds > 0 else 0.0

    @property
    def per_token(self) -> float | None:
        """Seconds per token after the first; None for a single token."""
        return self.decode_seconds / (self.emitted - 1) if self.emitted > 1 and self.decode_seconds > 0 else None

    def record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, record: dict[str, Any]) -> "Answer":
        """From a line of the results log; keys of another version are ignored."""
        known = {f.name for f in fields(cls)}
        return cls(**{key: value for key, value in record.items() if key in known})


def shared_text(a: Sequence[int], b: Sequence[int], ends: Sequence[int]) -> bool:
    """Whether two answers are equal up to end tokens, which not every engine reports."""
    return _stripped(a, ends) == _stripped(b, ends)


def _stripped(tokens: Sequence[int], ends: Sequence[int]) -> list[int]:
    kept = list(tokens)
    while kept and kept[-1] in ends:
        kept.pop()
    return kept

"""Answer: what is written down about one method answering one question. One line of the results log."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

IDENTICAL, NEAR, DIFFERS = "identical", "near tie", "differs"
REFERENCE = "reference"  # plain decoding itself, which the others are held against
UNJUDGED = "not judged"  # a lossy recipe, draws of its own, or nothing to hold it against


@dataclass(slots=True)
class Answer:
    """Times are measured in the process that answers, from the request to its last token, without any pipe."""

    method: str
    question: str
    category: str
    task: str
    prompt_tokens: int
    tokens: list[int] = field(default_factory=list[int])
    emitted: int = 0  # as the method counts them; its end token included
    seconds: float = 0.0  # request to last token
    first_seconds: float = 0.0  # request to first token
    decode_seconds: float = 0.0  # first to last token
    passes: int | None = None  # target passes that emitted; None: the method does not tell
    drafted: int | None = None
    accepted: int | None = None
    drafted_by_position: list[int] = field(default_factory=list[int])
    accepted_by_position: list[int] = field(default_factory=list[int])
    parts: dict[str, float] = field(default_factory=dict[str, float])  # seconds of the rounds after the first token
    finish: str = ""
    counted: str = ""  # who counted the tokens, and how
    status: str = UNJUDGED
    why: str = ""  # behind the status
    compared: int = 0  # tokens up to and including the first difference from plain decoding
    same_text: bool | None = None  # as plain decoding's; information only where arithmetic is not ours
    error: str | None = None

    @property
    def good(self) -> bool:
        return self.error is None

    @property
    def speed(self) -> float:
        """Tokens per second, from the request on."""
        return self.emitted / self.seconds if self.seconds > 0 else 0.0

    @property
    def per_token(self) -> float | None:
        """Seconds per token after the first; None for a single token."""
        return self.decode_seconds / (self.emitted - 1) if self.emitted > 1 and self.decode_seconds > 0 else None

    def record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, record: dict[str, Any]) -> "Answer":
        """From a results log's line; keys of another version are left out."""
        known = {f.name for f in fields(cls)}
        return cls(**{key: value for key, value in record.items() if key in known})


def shared_text(a: Sequence[int], b: Sequence[int], ends: Sequence[int]) -> bool:
    """Whether two answers say the same; end tokens do not count, because not everybody reports them."""
    return _stripped(a, ends) == _stripped(b, ends)


def _stripped(tokens: Sequence[int], ends: Sequence[int]) -> list[int]:
    kept = list(tokens)
    while kept and kept[-1] in ends:
        kept.pop()
    return kept

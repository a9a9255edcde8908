"""What a model returns: pieces of text while it generates, then a result with the whole answer and its statistics."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draftwood.core.request import FinishDetail, FinishReason, Request, Stats

Prompt = str | Sequence[int]

STATS = (  # of `Stats`, in a result's record
    "acceptance_by_position", "rounds_all", "rounds_some", "rounds_none", "draft_tokens", "disabled", "cached_tokens",
    "preempted", "saved_ms", "accepted_prediction_tokens", "rejected_prediction_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """The text of one token, and its source: -1 is the target itself, otherwise the drafter's number. `source_name`: the
    drafter's class, or "target"."""

    text: str
    token_id: int
    source: int
    source_name: str = ""


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token and the logarithm of its probability; `top` holds the most probable tokens of the same position."""

    token_id: int
    text: str
    logprob: float
    top: "tuple[Logprob, ...]" = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity: a forbidden token has the logprob None."""
        value = self.logprob if math.isfinite(self.logprob) else None
        top = {"top": [each.to_dict() for each in self.top]} if self.top else {}
        return {"token_id": self.token_id, "text": self.text, "logprob": value, **top}


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one round added to a stream. The last chunk carries the whole answer as its `result`."""

    pieces: tuple[Piece, ...]
    finish_reason: FinishReason | None
    finish_detail: FinishDetail | None = None
    result: "Result | None" = None

    @property
    def text(self) -> str:
        return "".join(p.text for p in self.pieces)


@dataclass(frozen=True, slots=True)
class Result:
    """A finished answer. `token_ids` do not include the prompt; `pieces` hold the source of each. `source_names`: of the
    drafters that the recipe has, by number."""

    prompt: Prompt
    num_prompt_tokens: int
    text: str
    token_ids: tuple[int, ...]
    pieces: tuple[Piece, ...]
    finish_reason: FinishReason
    error: str | None
    logprobs: tuple[Logprob, ...] | None
    seed: int
    recipe: str
    lossless: bool
    stats: Stats
    seconds: float
    finish_detail: FinishDetail | None = None
    backend: str = ""  # what computed: precision and instruction set
    notes: tuple[str, ...] = ()  # what was not used of the request, one sentence each; never a difference in the text
    source_names: tuple[str, ...] = ()
    more_samples: "tuple[Result, ...]" = ()  # of the same prompt, with SamplingParams.n above 1

    @property
    def samples(self) -> "tuple[Result, ...]":
        """All samples of the prompt, this one first: SamplingParams.n of them."""
        return (self, *self.more_samples)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_tokens_by_source(self) -> dict[str, int]:
        """How many tokens the target wrote itself, and how many of each drafter were accepted. Names as in `pieces`."""
        return dict(Counter(piece.source_name for piece in self.pieces))

    @property
    def tokens_per_pass(self) -> float:
        return self.num_tokens / self.stats.target_passes if self.stats.target_passes else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values that `json.dumps` takes, NaN and infinity left out."""
        record: dict[str, Any] = {
            "prompt": self.prompt if isinstance(self.prompt, str) else list(self.prompt),
            "num_prompt_tokens": self.num_prompt_tokens,
            "text": self.text,
            "token_ids": list(self.token_ids),
            "sources": [piece.source for piece in self.pieces],
            "source_names": list(self.source_names),
            "finish_reason": self.finish_reason,
            "finish_detail": self.finish_detail,
            "seed": self.seed,
            "recipe": self.recipe,
            "backend": self.backend,
            "lossless": self.lossless,
            "seconds": self.seconds,
            "stats": {
                "target_passes": self.stats.target_passes,
                "tokens_per_pass": self.tokens_per_pass,
                "tokens_per_second": self.tokens_per_second,
                **{name: getattr(self.stats, name) for name in STATS},
            },
        }
        if self.logprobs is not None:
            record["logprobs"] = [each.to_dict() for each in self.logprobs]
        if self.notes:
            record["notes"] = list(self.notes)
        if self.error is not None:
            record["error"] = self.error
        if self.more_samples:
            record["samples"] = [each.to_dict() for each in self.more_samples]
        return record


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of several completions. `score`: a log score that ranks the completions of one prompt and means nothing beyond.
    `share`: the same as weights that sum to 1."""

    text: str
    token_ids: tuple[int, ...]
    score: float
    share: float
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Completions of one prompt that share their passes, the best first. Lossy: they are no samples of the model."""

    prompt: Prompt
    num_prompt_tokens: int
    alternatives: tuple[Alternative, ...]
    target_passes: int  # those over the prompt included
    seconds: float
    backend: str = ""
    lossless: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(each.text for each in self.alternatives)

    @property
    def scores(self) -> tuple[float, ...]:
        return tuple(each.score for each in self.alternatives)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values that `json.dumps` takes."""
        prompt = self.prompt if isinstance(self.prompt, str) else list(self.prompt)
        each = [{**asdict(one), "token_ids": list(one.token_ids)} for one in self.alternatives]
        return {**asdict(self), "prompt": prompt, "alternatives": each}


def piece_of(request: Request, index: int, start: int, end: int, names: Sequence[str]) -> Piece:
    """Output token `index` with its part of the text. `names`: of sources, by number."""
    source = request.sources[index]
    name = "target" if source < 0 else names[source] if source < len(names) else f"drafter {source}"
    return Piece(request.settled[start:end], request.output[index], source, name)


def pieces_of(request: Request, names: Sequence[str] = ()) -> tuple[Piece, ...]:
    """The text of a finished request, split at its tokens."""
    count = len(request.marks)
    ends = [*request.marks[:-1], len(request.settled)][:count]
    return tuple(
        piece_of(request, i, a, b, names) for i, (a, b) in enumerate(zip([0, *ends][:count], ends, strict=True))
    )


def logprobs_of(request: Request, text: Callable[[int], str]) -> tuple[Logprob, ...] | None:
    """Of every output token, if the request asked for them. `text`: of a token."""
    if request.params.logprobs is None:
        return None
    return tuple(
        Logprob(token, text(token), value, tuple(Logprob(other, text(other), x) for other, x in best))
        for token, (value, best) in zip(request.output, request.logprobs, strict=True)
    )


class PieceReader:
    """The text of a running request, piece by piece. Text that a stop string may still remove is held back."""

    def __init__(self) -> None:
        self.given = 0  # tokens read so far
        self._shown = 0  # characters

    def read(self, request: Request, names: Sequence[str] = ()) -> tuple[Piece, ...]:
        """What is new since the last call."""
        visible, pieces = request.visible(), list[Piece]()
        while self.given < len(request.output) and (request.finished or request.marks[self.given] <= visible):
            last = request.finished and self.given == len(request.output) - 1
            end = visible if last else min(request.marks[self.given], visible)
            pieces.append(piece_of(request, self.given, self._shown, end, names))
            self.given, self._shown = self.given + 1, max(self._shown, end)
        return tuple(pieces)

"""Request: one sequence from its prompt to its last token. The one place where text is clipped.

A request has `known` tokens (prompt, then output), of which the cache holds the first `done`. The work left is always
`known[done:]`, so prompt chunks, resume after preemption and decoding are the same thing.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.sampling.params import SamplingParams

FinishReason = Literal["stop", "length", "cancelled", "error"]
FinishDetail = Literal["eos", "stop_token", "stop_string", "max_tokens", "context"]
"""What ended an answer: the first three are a "stop", the last two a "length"."""

NO_LIMIT = 2**31 - 1


class TextStream(Protocol):
    """Tokens in, text out, whole characters only: what stop strings and streams look at."""

    def push(self, ids: Sequence[int]) -> str: ...
    def flush(self) -> str: ...


@dataclass(slots=True)
class Stats:
    """What a request's rounds did. A pass counts when it emitted: prompt chunks before the last do not."""

    target_passes: int = 0
    drafted: list[int] = field(default_factory=list[int])  # per depth 1..: rounds in which a live node stood there
    accepted: list[int] = field(default_factory=list[int])  # per depth 1..: rounds in which the path reached it
    rounds_all: int = 0  # rounds that accepted as deep as was drafted
    rounds_some: int = 0
    rounds_none: int = 0  # drafted, nothing accepted
    draft_tokens: int = 0
    disabled: str | None = None  # why the drafter was taken off this request
    cached_tokens: int = 0  # prompt tokens found in the cache
    preempted: int = 0
    # Milliseconds that plain decoding would have taken longer, by measured rounds; negative: that it would have been faster.
    # None while no round without a draft was measured.
    saved_ms: float | None = None
    # With SamplingParams.prediction. Accepted: drafted tokens that became text and that the drafter of predictions proposed
    # there. Rejected: tokens of the prediction, each counted once, that were drafted and never became text that way. A token
    # that was never drafted is neither, and where another drafter proposes the same token, it counts, too.
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0

    def count(self, depth: int, nodes: int, accepted: int) -> None:
        """One round that drafted `nodes` nodes down to `depth` and kept `accepted` of them."""
        self.target_passes += 1
        self.draft_tokens += nodes
        if not depth:
            return
        for levels, reached in ((self.drafted, depth), (self.accepted, accepted)):
            levels.extend([0] * (reached - len(levels)))
            for level in range(reached):
                levels[level] += 1
        self.rounds_all += accepted == depth
        self.rounds_none += accepted == 0
        self.rounds_some += 0 < accepted < depth

    @property
    def acceptance_by_position(self) -> list[float]:
        """Of the rounds that drafted down to depth j, the share whose path reached it."""
        reached = [*self.accepted, *[0] * (len(self.drafted) - len(self.accepted))]
        return [a / d if d else 0.0 for a, d in zip(reached, self.drafted, strict=False)]


@dataclass(slots=True, eq=False)
class Request:
    """Mutable, owned by the thread that runs the engine. `eos` are the tokens that end this model's sequences."""

    id: int
    prompt: list[int]
    params: SamplingParams
    vocab_size: int
    eos: tuple[int, ...] = ()
    text: TextStream | None = None

    seed: int = field(init=False)  # of params, or a fresh one
    output: list[int] = field(default_factory=list[int])
    sources: list[int] = field(default_factory=list[int])  # per output token: -1 the target, else the drafter's number
    logprobs: list[tuple[float, list[tuple[int, float]]]] = field(default_factory=list[Any])
    finish_reason: FinishReason | None = None
    finish_detail: FinishDetail | None = None
    error: str | None = None
    stats: Stats = field(default_factory=Stats)
    settled: str = ""  # decoded text so far, stop strings cut off
    marks: list[int] = field(default_factory=list[int])  # length of `settled` after each output token
    _counts: Tensor | None = None
    _counted: int = 0
    _seen: Tensor | None = None

    def __post_init__(self) -> None:
        # 32 bits: easy to type again, and exact in every JSON reader.
        self.seed = secrets.randbits(32) if self.params.seed is None else self.params.seed

    @property
    def prediction(self) -> tuple[int, ...]:
        """Token ids of the answer that the caller expects; empty: none."""
        given = self.params.prediction
        return given if isinstance(given, tuple) else ()

    @property
    def known(self) -> list[int]:
        return self.prompt + self.output

    @property
    def before(self) -> tuple[int, ...]:
        """What stands in front of the text in a cache: entries are shared within a tenant only, because a prefix that is
        found at once tells that somebody sent it."""
        return tuple(self.params.tenant.encode())

    @property
    def num_known(self) -> int:
        return len(self.prompt) + len(self.output)

    def known_from(self, start: int, stop: int) -> list[int]:
        """known[start:stop] without building the whole list."""
        cut = len(self.prompt)
        if start >= cut:
            return self.output[start - cut : stop - cut]
        return self.prompt[start : min(stop, cut)] + self.output[: max(0, stop - cut)]

    def known_tail(self, path: Sequence[int], count: int) -> list[int]:
        """The last `count` tokens of the text followed by `path`."""
        have = count - len(path)
        before = self.known_from(max(0, self.num_known - have), self.num_known) if have > 0 else []
        return [*before, *path][-count:] if count else []

    @property
    def root(self) -> int:
        return self.output[-1] if self.output else self.prompt[-1]

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def remaining(self) -> int:
        return self.params.max_tokens - len(self.output)

    @property
    def draft_room(self) -> tuple[int, int]:
        """Levels and nodes that its next draft may have: by its own options, and by what is left to emit."""
        p, left = self.params, self.remaining - 1
        most = [each for each in (p.max_draft_nodes, p.max_draft_tokens) if each is not None]
        if p.max_draft_tokens is not None:
            most.append(max(0, p.max_draft_tokens - self.stats.draft_tokens))
        nodes = min(most, default=NO_LIMIT)
        return min(left, nodes, NO_LIMIT if p.max_draft_depth is None else p.max_draft_depth), nodes

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end the answer."""
        return (*(() if self.params.ignore_eos else self.eos), *self.params.stop_token_ids)

    def ended_by(self, path: Sequence[int]) -> bool:
        """Whether the answer would be over somewhere on this path."""
        first = max(0, self.params.min_tokens - len(self.output) - 1)
        return any(token in self.ends for token in path[first:])

    def history(self, device: torch.device) -> tuple[Float[Tensor, "V"], Int[Tensor, "M"]]:
        """How often the output has each token, and the tokens of prompt and output; kept up to date as the output grows."""
        if self._counts is None or self._seen is None:
            self._counts = torch.zeros(self.vocab_size, device=device)
            self._seen = torch.tensor(sorted(set(self.prompt)), device=device)
        fresh = self.output[self._counted :]
        if fresh:
            new = torch.tensor(fresh, device=device)
            self._counts.index_add_(0, new, torch.ones_like(new, dtype=self._counts.dtype))
            self._seen = torch.tensor(sorted({*self.prompt, *self.output}), device=device)
            self._counted = len(self.output)
        return self._counts, self._seen

    def accept(self, tokens: Sequence[int], sources: Sequence[int]) -> int:
        """Emit tokens in order until a stop condition; how many were taken. What follows a stop is never seen."""
        for i, (token, source) in enumerate(zip(tokens, sources, strict=True)):
            self.output.append(token)
            self.sources.append(source)
            ended = self._ended(token)
            self.marks.append(len(self.settled))
            if ended:
                return i + 1
        return len(tokens)

    def _ended(self, token: int) -> bool:
        enough = len(self.output) >= self.params.min_tokens
        if token in self.ends and enough:
            if self.text is not None and self.params.include_stop_str_in_output:
                self.settled += self.text.push([token])
            self._finish_text()
            self._end("stop", "stop_token" if token in self.params.stop_token_ids else "eos")
        else:
            if self.text is not None:
                self._settle(self.text.push([token]), enough)
            if not self.finished and self.remaining <= 0:
                self._finish_text()  # the last characters may complete a stop string
                self._end("length", "max_tokens")
        return self.finished

    def _settle(self, piece: str, enough: bool) -> None:
        """Append decoded text and cut it at a stop string."""
        before = len(self.settled)
        self.settled += piece
        if not (piece and enough and self.params.stop):
            return
        # Only what ends in the new piece counts: text that was let pass before min_tokens is not taken back.
        hits = [(at, s) for s in self.params.stop if (at := self.settled.find(s, max(0, before - len(s) + 1))) >= 0]
        if hits:
            at, found = min(hits)
            self.settled = self.settled[: at + len(found) * self.params.include_stop_str_in_output]
            self._end("stop", "stop_string")

    def _finish_text(self) -> None:
        if self.text is not None:
            self._settle(self.text.flush(), enough=len(self.output) >= self.params.min_tokens)

    def _end(self, reason: FinishReason, detail: FinishDetail | None) -> None:
        """The first end stands."""
        if not self.finished:
            self.finish_reason, self.finish_detail = reason, detail

    def finish(self, reason: FinishReason, error: str | None = None) -> None:
        """End from outside: cancelled, failed, or ("length") the context or the cache is full."""
        if not self.finished:
            self._finish_text()
            self.finish_reason, self.error = reason, error
            self.finish_detail = "context" if reason == "length" else None

    def visible(self) -> int:
        """Number of characters of `settled` that no stop string can remove any more."""
        if self.finished or not self.params.stop or self.params.include_stop_str_in_output:
            return len(self.settled)
        held = 0
        for s in self.params.stop:
            for size in range(min(len(s) - 1, len(self.settled)), held, -1):
                if self.settled.endswith(s[:size]):
                    held = max(held, size)
                    break
        return len(self.settled) - held

"""SamplingParams: how one request wants its tokens chosen. Checked at the door; nothing is ever dropped silently."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Bool
from torch import Tensor

from draftwood.errors import OptionError

Grammar = Callable[[Sequence[int]], Bool[Tensor, "V"]]
"""Output tokens so far -> which tokens may follow. Called for visited nodes only, with that node's own path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's wishes. The law is made in this order: grammar, bad words, min tokens, bias, penalties,
    temperature, min-p, top-k, top-p. Repetition looks at prompt and output, presence and frequency at output only.
    """

    temperature: float = 0.0  # 0 = the most probable token
    top_k: int = 0  # 0 = all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences that never appear
    min_tokens: int = 0  # no end of sequence and no stop before so many tokens
    max_tokens: int = 256
    stop: tuple[str, ...] = ()  # the text ends before the first of these
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # log-probabilities of the model itself, of the chosen and the n best tokens
    seed: int = 0
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_tokens", tuple(self.stop_tokens))
        object.__setattr__(self, "bad_words", tuple(tuple(w) for w in self.bad_words))
        _need(
            _real(self.temperature) and self.temperature >= 0,
            "temperature",
            self.temperature,
            "0 is greedy, 1 the model's own law",
        )
        _need(self.top_k >= 0, "top_k", self.top_k, "0 keeps every token")
        _need(
            _real(self.top_p) and 0 < self.top_p <= 1,
            "top_p",
            self.top_p,
            "1 keeps every token; for greedy decoding set temperature to 0",
        )
        _need(_real(self.min_p) and 0 <= self.min_p <= 1, "min_p", self.min_p, "0 keeps every token")
        _need(
            _real(self.repetition_penalty) and self.repetition_penalty > 0,
            "repetition_penalty",
            self.repetition_penalty,
            "1 is none",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            _need(_real(getattr(self, name)), name, getattr(self, name), "0 is none")
        _need(self.max_tokens >= 1, "max_tokens", self.max_tokens, "ask for at least one token")
        _need(self.min_tokens >= 0, "min_tokens", self.min_tokens, "0 is none")
        _need(self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, f"max_tokens is {self.max_tokens}")
        _need(all(self.stop), "stop", self.stop, "an empty stop string would end every answer at once")
        _need(all(self.bad_words), "bad_words", self.bad_words, "an empty word would ban every token")
        _need(self.logprobs is None or 0 <= self.logprobs <= 128, "logprobs", self.logprobs, "0 to 128")
        for token, bias in self.logit_bias.items():
            _need(
                token >= 0 and not math.isnan(bias) and bias < math.inf,
                "logit_bias",
                {token: bias},
                "token ids and finite numbers (or -inf)",
            )
        _need(-(2**63) <= self.seed < 2**63, "seed", self.seed, "a 64-bit whole number")

    @property
    def plain(self) -> bool:
        """Whether the logits are used as they are: no path history, bias or mask."""
        return not (
            self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
            or self.logit_bias
            or self.bad_words
            or self.min_tokens
            or self.grammar is not None
        )

    @property
    def counts_history(self) -> bool:
        return bool(self.repetition_penalty != 1.0 or self.presence_penalty or self.frequency_penalty)

    def check(self, vocab: int) -> None:
        """Token ids must exist in this model's vocabulary."""
        ids = [*self.logit_bias, *self.stop_tokens, *(t for w in self.bad_words for t in w)]
        wrong = [t for t in ids if not 0 <= t < vocab]
        _need(not wrong, "token id", wrong[:5], f"this model's vocabulary ends at {vocab - 1}")


def _real(x: Any) -> bool:
    return isinstance(x, int | float) and math.isfinite(x)


def _need(good: bool, name: str, value: Any, hint: str) -> None:
    if not good:
        raise OptionError(f"{name} cannot be {value!r}\nhint: {hint}")

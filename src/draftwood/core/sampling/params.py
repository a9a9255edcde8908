"""SamplingParams: how the tokens of one request are chosen. Every option is checked when given; none is dropped."""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from jaxtyping import Bool
from torch import Tensor

from draftwood.errors import OptionError

Grammar = Callable[[Sequence[int]], Bool[Tensor, "V"]]
"""Output tokens so far -> which tokens may follow. Called for visited nodes only, with that node's own path."""


LARGEST = 1e6
"""Options beyond this are mistakes, and float32 would make infinities of them."""

_DRAFT_LIMITS = ("max_draft_depth", "max_draft_nodes", "max_draft_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Options of one request. The distribution is made in this order: grammar, bad words, min tokens, bias, penalties,
    temperature, min-p, top-k, top-p. Repetition looks at prompt and output, presence and frequency at output only.
    """

    n: int = 1  # samples per prompt; sample i of a request with a seed uses seed + i
    temperature: float = 0.0  # 0 = the most probable token
    top_k: int = 0  # 0 or -1 = all
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
    stop_token_ids: tuple[int, ...] = ()  # the answer ends with the first of these; its text is left out
    include_stop_str_in_output: bool = False  # the text ends with the stop string or stop token instead
    ignore_eos: bool = False
    logprobs: int | None = None  # log-probabilities of the model itself, of the chosen and the n best tokens
    seed: int | None = None  # None = a fresh one for each request; the result tells which
    grammar: Grammar | None = None
    prediction: str | tuple[int, ...] | None = None  # what the answer will probably be: drafts, which never change it
    max_draft_depth: int | None = None  # levels of a draft at most; they never change the distribution
    max_draft_nodes: int | None = None  # drafted tokens of a round at most
    max_draft_tokens: int | None = None  # drafted tokens of the whole answer at most, then plain decoding
    priority: int = 0  # lower runs sooner; requests of one priority in the order of the scheduler
    tenant: str = ""  # whose request it is: cached prefixes and earlier answers are those of the same tenant only

    def __new__(cls, *args: Any, **options: Any) -> Self:
        # Before the generated __init__, whose TypeError would name neither the nearest option nor the list of them.
        if args:
            raise OptionError(f"sampling options have names, got {args[0]!r}\nhint: SamplingParams(temperature=0.7)")
        for name in options:
            if name not in cls.__slots__:
                near = difflib.get_close_matches(name, cls.__slots__, n=1, cutoff=0.7)
                hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(cls.__slots__)}"
                raise OptionError(f"unknown sampling option: {name!r}\nhint: {hint}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self._settle_types()
        self._between("temperature", 0, LARGEST, "0 is greedy, 1 the model's own distribution")
        self._between("top_k", -1, math.inf, "0 or -1 keeps every token")
        if self.top_k < 0:
            object.__setattr__(self, "top_k", 0)
        self._between("top_p", 1e-9, 1, "1 keeps every token; for greedy decoding set temperature to 0")
        self._between("min_p", 0, 1, "0 keeps every token")
        self._between("repetition_penalty", 1 / LARGEST, LARGEST, "1 is none")
        for name in ("presence_penalty", "frequency_penalty"):
            self._between(name, -LARGEST, LARGEST, "0 is none")
        self._between("max_tokens", 1, math.inf, "ask for at least one token")
        self._between("min_tokens", 0, self.max_tokens, f"max_tokens is {self.max_tokens}")
        if self.seed is not None:
            self._between("seed", -(2**63), 2**63 - 1, "a 64-bit whole number")
        self._between("priority", -(2**31), 2**31 - 1, "0 is usual, lower runs sooner")
        self._between("n", 1, 4096, "1 to 4096")
        _need(self.n == 1 or not self.greedy, "n", self.n, "samples differ above temperature 0 only; set temperature")
        for name in _DRAFT_LIMITS:
            if getattr(self, name) is not None:
                self._between(name, 0, math.inf, "0 drafts nothing")
        if self.logprobs is not None:
            self._between("logprobs", 0, 128, "0 to 128")
        hint = "json_schema(...) or regex(...) of draftwood.grammar, or a function from token ids to a mask"
        _need(self.grammar is None or callable(self.grammar), "grammar", self.grammar, hint)
        _need(all(self.stop), "stop", self.stop, "an empty stop string would end every answer at once")
        _need(all(self.bad_words), "bad_words", self.bad_words, "an empty word would ban every token")
        for token, bias in self.logit_bias.items():
            good = _whole(token) and token >= 0 and _number(bias) and (abs(bias) <= LARGEST or bias == -math.inf)
            _need(good, "logit_bias", {token: bias}, f"token ids and numbers up to {LARGEST:g}, or -inf")

    def _between(self, name: str, low: float, high: float, hint: str) -> None:
        value = getattr(self, name)
        _need(_number(value) and low <= value <= high, name, value, hint)

    def _settle_types(self) -> None:
        """Sequences become tuples, and whole numbers must be whole numbers: later they are shapes and indices."""
        for name in ("n", "top_k", "min_tokens", "max_tokens", "seed", "logprobs", "priority", *_DRAFT_LIMITS):
            value, optional = getattr(self, name), name in ("seed", "logprobs", *_DRAFT_LIMITS)
            _need(_whole(value) or (optional and value is None), name, value, "a whole number")
        tenant: Any = self.tenant
        object.__setattr__(self, "tenant", "" if tenant is None else tenant)
        for name, kind, hint in (
            ("ignore_eos", bool, "True or False"),
            ("include_stop_str_in_output", bool, "True or False"),
            ("tenant", str, "a name; requests of one tenant may share drafts"),
        ):
            value = getattr(self, name)
            _need(isinstance(value, kind), name, value, hint)
        none: dict[str, Any] = {"stop": (), "stop_token_ids": (), "bad_words": (), "logit_bias": {}}
        given = {name: empty if getattr(self, name) is None else getattr(self, name) for name, empty in none.items()}
        if isinstance(given["stop"], str):
            given["stop"] = (given["stop"],)
        _need(
            isinstance(given["logit_bias"], Mapping), "logit_bias", given["logit_bias"], "ids and numbers: {42: -5.0}"
        )
        for name in ("stop", "stop_token_ids", "bad_words"):
            _need(_listed(given[name]), name, given[name], "a list")
        stop: tuple[Any, ...] = tuple(given["stop"])
        ends: tuple[Any, ...] = tuple(given["stop_token_ids"])
        _need(all(isinstance(s, str) for s in stop), "stop", stop, "texts")
        _need(all(_whole(t) for t in ends), "stop_token_ids", ends, "token ids")
        listed = all(_listed(w) for w in given["bad_words"])
        hint = "lists of token ids; texts are keywords of LLM's methods"
        _need(listed and all(_whole(t) for w in given["bad_words"] for t in w), "bad_words", given["bad_words"], hint)
        words = tuple(tuple(w) for w in given["bad_words"])
        for name, value in (
            ("prediction", self._settled_prediction()),
            ("stop", stop),
            ("stop_token_ids", ends),
            ("bad_words", words),
            ("logit_bias", given["logit_bias"]),
        ):
            object.__setattr__(self, name, value)

    def _settled_prediction(self) -> str | tuple[int, ...] | None:
        """A text as it is, ids as a tuple. What is empty predicts nothing."""
        given: Any = self.prediction
        if given is None or isinstance(given, str):
            return given or None
        hint = "the text that is expected, or its token ids"
        _need(_listed(given), "prediction", given, hint)
        ids: tuple[Any, ...] = tuple(given)
        wrong = [token for token in ids if not _whole(token)]
        _need(not wrong, "prediction", wrong[:5], hint)
        return ids or None

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken. Temperatures that float32 could not divide by mean the same."""
        return self.temperature < 1e-6

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

    def check(self, vocab_size: int) -> None:
        """Token ids must exist in this model's vocabulary, and a prediction must be given by such."""
        predicted: Any = self.prediction or ()
        hint = "an engine takes token ids; LLM's methods take a text and tokenise it"
        _need(not isinstance(predicted, str), "prediction", predicted[:40], hint)
        ids = [*self.logit_bias, *self.stop_token_ids, *(t for w in self.bad_words for t in w)]
        wrong = [t for t in (*ids, *predicted) if not 0 <= t < vocab_size]
        _need(not wrong, "token id", wrong[:5], f"this model's vocabulary ends at {vocab_size - 1}")


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _whole(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def _listed(x: Any) -> bool:
    return isinstance(x, Sequence) and not isinstance(x, str | bytes)


def _need(good: bool, name: str, value: Any, hint: str) -> None:
    if not good:
        raise OptionError(f"{name} cannot be {value!r}\nhint: {hint}")

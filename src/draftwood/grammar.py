"""Answers that follow a JSON schema or a regular expression, by llguidance (an extra: pip install 'draftwood[grammar]').

    llm.generate("A person:", grammar=json_schema({"type": "object", "properties": {"age": {"type": "integer"}}}))

A grammar masks logits along each node's own path, before a draft is drawn from them and before the target's token is: the
text is that of plain decoding with the same mask.
"""

import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from draftwood.errors import OptionError
from draftwood.models.loading.tokenizer import Tokenizer

MAX_TEXT = 200_000  # characters of a schema
MAX_PATTERN = 10_000  # characters of an expression, and the most repetitions that it or a schema may count
MAX_MULTIPLE = 10_000  # of multipleOf, whose automaton has as many states
_COUNTED = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
MASKS = 64  # kept: a drafter and the rule ask for the same nodes
# Free white space lets a model write spaces for ever.
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True, slots=True)
class GrammarText:
    """A grammar as it is written. LLM compiles it for its tokenizer; an engine takes only what is compiled."""

    kind: str
    text: str

    def __call__(self, token_ids: Sequence[int]) -> Bool[Tensor, "V"]:
        raise OptionError(
            "this grammar is not compiled for a tokenizer\nhint: LLM's methods compile it; for an engine: compiled(...)"
        )


def json_schema(schema: Mapping[str, Any] | str | bool) -> GrammarText:
    """JSON that fits the schema: a mapping, or its text. Objects and lists are written as `json.dumps` does."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise OptionError(f"grammar: the schema is not JSON: {error}") from None
    if not isinstance(schema, Mapping | bool):
        raise OptionError(f"grammar: a schema cannot be {schema!r}\nhint: a mapping, such as {{'type': 'object'}}")
    try:
        _check_sizes(schema)
        return GrammarText("json", json.dumps(schema, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"grammar: the schema is not JSON: {error}") from None


def regex(pattern: str) -> GrammarText:
    """Text that matches the whole expression (Rust's syntax, without look-around)."""
    if not isinstance(pattern, str):
        raise OptionError(f"grammar: an expression cannot be {pattern!r}\nhint: a text")
    _check_pattern(pattern)
    return GrammarText("regex", pattern)


def _check_sizes(schema: Any) -> None:
    """What would take minutes or gigabytes to compile is refused before: a compilation cannot be interrupted."""
    if isinstance(schema, Mapping):
        for name, value in schema.items():
            whole = isinstance(value, int | float) and not isinstance(value, bool)
            if name == "multipleOf" and whole and Fraction(str(value)).numerator > MAX_MULTIPLE:
                raise OptionError(f"grammar: multipleOf {value} is too large\nhint: at most {MAX_MULTIPLE}")
            if name in _COUNTED and whole and value > MAX_PATTERN:
                raise OptionError(f"grammar: {name} {value} is too large\nhint: at most {MAX_PATTERN}")
            if name == "pattern" and isinstance(value, str):
                _check_pattern(value)
            _check_sizes(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            _check_sizes(value)


def _check_pattern(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN:
        raise OptionError(f"grammar: an expression of {len(pattern)} characters\nhint: at most {MAX_PATTERN}")
    if _num_positions(pattern) > MAX_PATTERN:
        raise OptionError(f"grammar: an expression that counts too far\nhint: at most {MAX_PATTERN} repetitions in all")


def _num_positions(pattern: str) -> int:
    """Characters of the expression with all of its counted repetitions written out."""
    groups, last = [0], 0  # positions of the open groups, and of what a count would repeat
    for part in re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]|\{\s*\d+\s*(?:,\s*\d*\s*)?\}|.", pattern, re.DOTALL):
        if part == "(":
            groups.append(0)
        elif part == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif part[0] == "{" and len(part) > 1:
            most = max(int(number[:9]) for number in re.findall(r"\d+", part))
            groups[-1] += last * max(0, most - 1)
            last *= max(1, most)
        else:
            last = 1
            groups[-1] += 1
    return sum(groups)


def compiled(grammar: GrammarText, tokenizer: Tokenizer, vocab_size: int, eos: Sequence[int]) -> "Matching":
    """For one sequence; others take a `fork`. OptionError names what the grammar has that is not supported."""
    if len(grammar.text) > MAX_TEXT:
        raise OptionError(f"grammar: {len(grammar.text)} characters, at most {MAX_TEXT} are read")
    matcher = _llguidance().LLMatcher
    own = _tokenizer(tokenizer, vocab_size, eos)
    try:
        if grammar.kind == "json":
            source = matcher.grammar_from_json_schema(grammar.text, _JSON_STYLE)
        else:
            source = matcher.grammar_from_regex(grammar.text)
    except ValueError as error:
        raise _refused(grammar, str(error)) from None
    found = matcher(own, source, log_level=0)
    if found.is_error():
        raise _refused(grammar, found.get_error().partition("<state>")[0])
    return Matching(found, vocab_size)


class Matching:
    """Which tokens may follow a text. It walks to each text it is asked about: back to where the last differs, then on."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._begin, self._vocab_size = matcher, vocab_size
        self._matcher: Any = matcher.deep_copy()
        self._text: tuple[int, ...] = ()
        self._masks: dict[tuple[int, ...], Tensor] = {}

    def fork(self) -> "Matching":
        """The same grammar for another sequence."""
        return Matching(self._begin, self._vocab_size)

    def __call__(self, token_ids: Sequence[int]) -> Bool[Tensor, "V"]:
        text = tuple(token_ids)
        found = self._masks.get(text)
        if found is None:
            found = self._mask() if self._walk(text) else torch.ones(self._vocab_size, dtype=torch.bool)
            if len(self._masks) >= MASKS:
                self._masks.clear()
            self._masks[text] = found
        return found

    def _walk(self, text: tuple[int, ...]) -> bool:
        """Whether the grammar allows the text. What follows one that it forbids is never emitted, so anything may."""
        same = min(len(text), len(self._text))
        while self._text[:same] != text[:same]:
            same -= 1
        if same < len(self._text):
            self._matcher.rollback(len(self._text) - same)
        taken = self._matcher.try_consume_tokens(list(text[same:])) if same < len(text) else 0
        self._text = text[: same + taken]
        self._check()
        return same + taken == len(text)

    def _mask(self) -> Bool[Tensor, "V"]:
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        mask = np.unpackbits(bits, bitorder="little")[: self._vocab_size]
        return torch.from_numpy(mask.astype(np.bool_))

    def _check(self) -> None:
        if self._matcher.is_error():  # it grew beyond its limits
            raise OptionError(self._matcher.get_error())


def _refused(grammar: GrammarText, reason: str) -> OptionError:
    kind = {"json": "JSON schema", "regex": "expression"}[grammar.kind]
    return OptionError(f"grammar: this {kind} is not supported: {reason.strip()[:400]}")


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise OptionError("grammar: llguidance is missing\nhint: pip install 'draftwood[grammar]'") from None
    return llguidance


_tokenizers: "WeakKeyDictionary[Tokenizer, Any]" = WeakKeyDictionary()
_lock = threading.Lock()


def _tokenizer(tokenizer: Tokenizer, vocab_size: int, eos: Sequence[int]) -> Any:
    """llguidance's own form of a tokenizer; making it takes about half a second."""
    with _lock:
        if tokenizer not in _tokenizers:
            ends = list(eos) or list(tokenizer.eos_token_ids)
            if not ends:
                raise OptionError("grammar: this model has no end-of-sequence token, so an answer could not end")
            make = _llguidance().LLTokenizer
            _tokenizers[tokenizer] = make(tokenizer.backend.to_str(), n_vocab=vocab_size, eos_token=ends)
        return _tokenizers[tokenizer]

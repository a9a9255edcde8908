"""Where a loaded model came from: its name, tokenizer and fingerprint, for recipes that need them."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from draftwood.models.loading.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Origin:
    """Does not reference the model: entries live as long as their model."""

    name: str
    tokenizer: Tokenizer
    eos_token_ids: tuple[int, ...]
    fingerprint: str  # tells two targets apart, for parts that were trained on one of them

    @property
    def control_tokens(self) -> tuple[int, ...]:
        """Special tokens of any kind: end of text, turns, padding."""
        return tuple(sorted({*self.eos_token_ids, *self.tokenizer.control_tokens}))


_ORIGINS: WeakKeyDictionary[Any, Origin] = WeakKeyDictionary()


def remember(model: Any, origin: Origin) -> None:
    """Store the origin of a model. Objects without weak references are skipped, because they would be kept for ever."""
    with suppress(TypeError):
        _ORIGINS[model] = origin


def origin_of(model: Any) -> Origin | None:
    """None for models that were built in memory."""
    return _ORIGINS.get(model)

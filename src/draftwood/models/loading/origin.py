"""Where a model came from: what a recipe may ask of its target beyond numbers, if the target was loaded by name."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from draftwood.models.loading.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Origin:
    """Never holds the model itself: it is kept for as long as the model lives."""

    name: str
    tokenizer: Tokenizer
    eos_token_ids: tuple[int, ...]
    fingerprint: str  # tells two targets apart, for parts that were trained on one of them

    @property
    def control_tokens(self) -> tuple[int, ...]:
        """Tokens that steer a text instead of being part of it: ends, turns, padding."""
        return tuple(sorted({*self.eos_token_ids, *self.tokenizer.control_tokens}))


_ORIGINS: WeakKeyDictionary[Any, Origin] = WeakKeyDictionary()


def remember(model: Any, origin: Origin) -> None:
    """Nothing for objects whose end cannot be noticed: they would be remembered for ever."""
    with suppress(TypeError):
        _ORIGINS[model] = origin


def origin_of(model: Any) -> Origin | None:
    """None for models that were built in memory."""
    return _ORIGINS.get(model)

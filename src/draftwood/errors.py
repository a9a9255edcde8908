"""Every error draftwood raises on purpose, in one tree.

    DraftwoodError
    ├── CompositionError     two parts of a recipe that must not stand together
    ├── OptionError          a sampling or engine option that cannot be honoured (also a ValueError)
    ├── UnknownNameError     a recipe, model or rule nobody has heard of (also a LookupError)
    ├── ModelError           anything wrong with a model's files
    │   ├── WeightsError     missing, extra, corrupt or truncated tensors
    │   ├── TokenizerError   a tokenizer that does not fit, a chat template that loses text
    │   └── DownloadError    a file that could not be fetched
    ├── TrainError           training that cannot start or go on: data, a loss that is no number, a full disk
    ├── DrafterError         a draft that no rule may see: the rows are disabled, the requests go on
    ├── OutOfBlocks          the cache is full: the engine shrinks the tier, then preempts
    └── EngineError          a broken invariant of ours, or an engine used after it was closed

Each message says what happened, the value, and a `hint:` where there is something to do.
"""

import difflib
from collections.abc import Iterable
from typing import Any


class DraftwoodError(Exception):
    """Base of all errors raised on purpose."""


class CompositionError(DraftwoodError):
    """Names the two parts that disagree and, where there is one, a part that would fit."""


class OptionError(DraftwoodError, ValueError):
    """An option refused at the door, before any token."""


class UnknownNameError(DraftwoodError, LookupError):
    """A name that is not in a list, with the nearest names that are."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        names = sorted(known)
        lowered = {each.lower(): each for each in names}
        near = [lowered[each] for each in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.5)]
        guess = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else f"known: {', '.join(names)}"
        super().__init__(f"unknown {kind}: {name!r}\nhint: {guess}" + (f"\n      {hint}" if hint else ""))


class ModelError(DraftwoodError):
    """Something is wrong with a model's files."""


class WeightsError(ModelError):
    """Missing, extra, corrupt or truncated tensors; the message names them."""


class TokenizerError(ModelError):
    """A tokenizer or chat template that does not fit the model."""


class DownloadError(ModelError):
    """A file that could not be fetched; the message says what to do."""


class TrainError(DraftwoodError):
    """Training that cannot start or go on. What was saved before stays good."""


class DrafterError(DraftwoodError):
    """A proposal with wrong shapes, ids or distributions. Never reaches a user: its rows go on undrafted."""


class OutOfBlocks(DraftwoodError):
    """The cache has no room for the rows asked for."""


class EngineError(DraftwoodError):
    """A broken invariant of the engine, or an engine used after it was closed."""


def need_at_least(part: str, **named: tuple[object, int]) -> None:
    """OptionError if one of the (value, least) pairs is no whole number or too small."""
    for name, (value, least) in named.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise OptionError(f"{part}: {name} cannot be {value!r}\nhint: a whole number, at least {least}")


MOST = 4096
"""Levels or nodes of a draft: with more, one round would take longer than the whole answer without a draft."""


def need_size(part: str, **named: tuple[Any, int]) -> None:
    """The same for sizes of a draft, which must not be too great either."""
    need_at_least(part, **named)
    for name, (value, least) in named.items():
        if value > MOST:
            raise OptionError(f"{part}: {name} cannot be {value!r}\nhint: from {least} to {MOST}")

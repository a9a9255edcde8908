"""Every error draftwood raises on purpose, in one tree.

    DraftwoodError
    ├── CompositionError     two parts of a recipe that do not fit
    ├── OptionError          an argument or option that cannot be honoured (also a ValueError)
    ├── UnknownNameError     an unknown name of a recipe, model or rule (also a LookupError)
    ├── ModelError           anything wrong with a model's files
    │   ├── WeightsError     missing, extra, corrupt or truncated tensors
    │   ├── TokenizerError   a tokenizer that does not fit, a chat template that loses text
    │   └── DownloadError    a file that could not be fetched
    ├── StoreError           a datastore that is damaged, of another tokenizer, or cannot be written
    ├── TraceError           a trace that is damaged, of another model, or cannot answer what is asked
    ├── TrainError           training that cannot start or continue: data, a loss that is not finite, a full disk
    ├── DrafterError         an invalid draft: the drafter is disabled for these requests, which continue without it
    ├── OutOfBlocks          the cache is full: the engine leaves out drafts, then preempts
    └── EngineError          a broken invariant, or an engine used after it was closed

Each message states what happened, the value, and a `hint:` where the user can do something.
"""

import difflib
from collections.abc import Iterable
from typing import Any


class DraftwoodError(Exception):
    """Base of all errors raised on purpose."""


class CompositionError(DraftwoodError):
    """Names the two parts that disagree and, where there is one, a part that would fit."""


class OptionError(DraftwoodError, ValueError):
    """An option that is refused before any token is made."""


class UnknownNameError(DraftwoodError, LookupError):
    """An unknown name, with the nearest known ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        names = sorted(known)
        lowered = {each.lower(): each for each in names}
        near = [lowered[each] for each in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.6)]
        guess = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else f"known: {', '.join(names)}"
        super().__init__(f"unknown {kind}: {name!r}\nhint: {guess}" + (f"\n      {hint}" if hint else ""))


class ModelError(DraftwoodError):
    """Something is wrong with a model's files."""


class WeightsError(ModelError):
    """Missing, extra, corrupt or truncated tensors; the message names them."""


class TokenizerError(ModelError):
    """A tokenizer or chat template that does not fit the model."""


class DownloadError(ModelError):
    """A file that could not be fetched; the message has a hint."""


class StoreError(DraftwoodError):
    """A datastore that cannot be used or built. A build that fails leaves what was there before."""


class TraceError(DraftwoodError):
    """A trace that cannot be written, read or replayed."""


class TrainError(DraftwoodError):
    """Training that cannot start or continue. Files saved before remain valid."""


class DrafterError(DraftwoodError):
    """A proposal with wrong shapes, ids or distributions. The engine catches it and continues without drafts."""


class OutOfBlocks(DraftwoodError):
    """The cache has no room for the entries asked for."""


class EngineError(DraftwoodError):
    """A broken invariant of the engine, or an engine used after it was closed."""


def need_at_least(part: str, **named: tuple[object, int]) -> None:
    """OptionError if one of the (value, least) pairs is no whole number or too small."""
    for name, (value, least) in named.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise OptionError(f"{part}: {name} cannot be {value!r}\nhint: a whole number, at least {least}")


MOST = 4096
"""Most levels or nodes of a draft: with more, one round would take longer than a whole answer by plain decoding."""


def need_size(part: str, **named: tuple[Any, int]) -> None:
    """The same for sizes of a draft, which are bounded by MOST too."""
    need_at_least(part, **named)
    for name, (value, least) in named.items():
        if value > MOST:
            raise OptionError(f"{part}: {name} cannot be {value!r}\nhint: from {least} to {MOST}")

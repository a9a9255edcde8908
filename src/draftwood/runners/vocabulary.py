"""Draft models whose vocabulary is not quite the target's: a few tokens more or fewer at the end, all others the same.

The draft then reads any token and proposes only those that both have. What is emitted does not depend on it.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import ALL, CacheSpec, ForwardInput, ForwardOutput, LayerPlan
from draftwood.core.model_info import ModelInfo
from draftwood.core.protocols import Cache, Runner
from draftwood.errors import CompositionError
from draftwood.runners.cpu import CpuRunner

MOST_MORE = 1024  # tokens at the end; a model with more of them is of another family


class FittedVocabulary:
    """A model with the vocabulary of another: logits of tokens it lacks are -inf, those of tokens it alone has are left
    out, and a token it lacks is read as its last one."""

    def __init__(self, model: Any, vocab_size: int) -> None:
        self.model, self.vocab_size = model, vocab_size

    @property
    def info(self) -> ModelInfo:
        return replace(self.model.info, vocab_size=self.vocab_size)

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        return self.model.cache_specs

    def first_layers(self, count: int) -> "FittedVocabulary":
        return FittedVocabulary(self.model.first_layers(count), self.vocab_size)

    def forward(
        self, x: ForwardInput, cache: Cache, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL
    ) -> ForwardOutput:
        output: ForwardOutput = self.model.forward(replace(x, ids=self._read(x.ids)), cache, taps=taps, layers=layers)
        # The greatest logit may be of a token that is left out.
        return replace(output, logits=self._fitted(output.logits), tokens=x, best=None)

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        return self.model.embed(self._read(ids))

    def head(
        self, hidden: Float[Tensor, "*S H"], *, ids: Int[Tensor, "W"] | None = None, norm: bool = True
    ) -> Float[Tensor, "*S W"]:
        if ids is None:
            return self._fitted(self.model.head(hidden, norm=norm))
        logits = self.model.head(hidden, ids=self._read(ids), norm=norm)
        return logits.masked_fill(ids.to(logits.device) >= self._own, -torch.inf)

    @property
    def _own(self) -> int:
        return self.model.info.vocab_size

    def _read(self, ids: Int[Tensor, "*S"]) -> Int[Tensor, "*S"]:
        return ids.clamp_max(self._own - 1)

    def _fitted(self, logits: Float[Tensor, "*S V"]) -> Float[Tensor, "*S W"]:
        missing = self.vocab_size - self._own
        if missing <= 0:
            return logits[..., : self.vocab_size]
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)


def fitted(draft: Runner, target: Runner, name: str) -> Runner:
    """`draft` with the target's vocabulary; CompositionError if ids do not mean the same. `name`: of the draft."""
    theirs, ours = draft.info.vocab_size, target.info.vocab_size
    differing = first_difference(draft.info.tokenizer, target.info.tokenizer, min(theirs, ours))
    if differing is not None:
        index, there, here = differing
        raise CompositionError(
            f"draft {name!r} has another vocabulary: token {index} is {there!r} there and {here!r} in the target\n"
            "hint: draft=NAME, a model of the same family with the same tokenizer"
        )
    if theirs == ours:
        return draft
    # Without tokenizers nobody knows whether ids mean the same.
    known = draft.info.tokenizer is not None and target.info.tokenizer is not None
    if not known or abs(theirs - ours) > MOST_MORE or not isinstance(draft, CpuRunner):
        raise CompositionError(
            f"draft {name!r} has a vocabulary of {theirs} tokens, the target one of {ours}\n"
            "hint: draft=NAME, a model of the same family with the same tokenizer"
            + (f"; up to {MOST_MORE} more or fewer at the end are allowed on a CPU" if known else "")
        )
    model = FittedVocabulary(draft.model, ours)
    return CpuRunner(model, replace(draft.info, vocab_size=ours))


def first_difference(a: Any, b: Any, count: int) -> tuple[int, str, str] | None:
    """The first of `count` ids that means different tokens in two tokenizers, with both; None if there is none, or if a
    tokenizer is not known."""
    if a is None or b is None or a is b:
        return None
    left, right = _tokens(a, count), _tokens(b, count)
    pairs = ((i, x, y) for i, (x, y) in enumerate(zip(left, right, strict=True)) if x != y and x and y)
    return next(islice(pairs, 1), None)


def _tokens(tokenizer: Any, count: int) -> Sequence[str]:
    found = [""] * count
    for token, index in tokenizer.backend.get_vocab().items():
        if index < count:
            found[index] = token
    return found

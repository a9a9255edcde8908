"""Exits: where a token may leave a model before its last layer, and how sure the model must be there.

    layers       2        4        6        norm and head are those of the whole model
    thresholds   .5       .5       0        a token leaves at the first exit whose most probable token has more

Which exit a token takes depends on the text alone, never on what is drawn behind it. So the distribution of that exit is an
ordinary draft distribution, and every rule that is exact for q is exact for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.errors import OptionError


@dataclass(frozen=True, slots=True)
class Exits:
    """`layers`: after how many layers each exit stands, ascending; the last one is the end of the model, where every token
    leaves. An exit with a threshold of 1 is never taken, so its head is not multiplied."""

    layers: tuple[int, ...]
    thresholds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.layers or list(self.layers) != sorted({*self.layers}) or self.layers[0] < 1:
            raise OptionError(f"exits cannot stand after {list(self.layers)} layers\nhint: ascending, such as 1, 2, 3")
        if len(self.thresholds) != len(self.layers):
            raise OptionError(
                f"thresholds cannot be {list(self.thresholds)}: there are {len(self.layers)} exits\n"
                "hint: one for each, the last one 0"
            )
        if any(not 0 <= each <= 1 for each in self.thresholds) or self.thresholds[-1]:
            raise OptionError(
                f"thresholds cannot be {list(self.thresholds)}\n"
                "hint: each from 0 to 1, and 0 for the last exit, where every token leaves"
            )

    @property
    def asked(self) -> "Exits":
        """Those that a token can take."""
        last = len(self.layers) - 1
        taken = [i for i, least in enumerate(self.thresholds) if least < 1 or i == last]
        return Exits(tuple(self.layers[i] for i in taken), tuple(self.thresholds[i] for i in taken))

    def leave(self, exit: int, logits: Float[Tensor, "U W"]) -> Bool[Tensor, "U"]:
        """Which tokens leave at this exit, by what it says there. One that says nothing definite holds no token."""
        if exit == len(self.layers) - 1:
            return torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        return (logits.amax(-1) - logits.logsumexp(-1)).exp() > self.thresholds[exit]

    def first(self, logits: Sequence[Float[Tensor, "U W"]]) -> Int[Tensor, "U"]:
        """The exit of each token, from what every exit says of it."""
        left = torch.stack([self.leave(i, each) for i, each in enumerate(logits)])
        return left.long().argmax(0)  # the first of the greatest

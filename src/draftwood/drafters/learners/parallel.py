"""Trains heads on one feature together: head k at index t imitates the target's distribution p_{t+1+k}.

The distribution at a later position depends on tokens that the head has not read. Its mean over these tokens is the same as
that of the token itself, with less noise.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from draftwood.core.forward import FINAL, Needs
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.positions import Guess, imitate, taught
from draftwood.drafters.nets.modules.hydra import HydraNet
from draftwood.drafters.nets.modules.medusa import MedusaNet
from draftwood.drafters.nets.modules.mlp import MLPNet
from draftwood.train.objectives import inverse, shifted


@dataclass(frozen=True, slots=True, eq=False)
class Parallel:
    """Small nets need only a `share` of the positions, which leaves time for others trained in the same loop."""

    net: Any  # MedusaNet, HydraNet or MLPNet
    keep: Int[Tensor, "W"]
    decay: float = 0.8
    share: float = 1.0
    needs: Needs = Needs(taps=frozenset({FINAL}))

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"heads": [p for p in self.net.parameters() if p.requires_grad]}

    def losses(self, shown: Shown, progress: float) -> Iterator[tuple[str, Tensor, dict[str, Tensor]]]:
        yield "heads", *self.loss_of(shown, self.guesses(shown))

    def guesses(self, shown: Shown) -> Iterator[Guess]:
        """Of the indices that count, head by head."""
        places = inverse(self.keep, self.net.config.layer.vocab_size)
        f = shown.features[FINAL]
        indices = taught(shown, None, 2, self.share).every
        at = indices.to(f.device, non_blocking=True)
        feature = f.flatten(0, 1)[at]
        ids = [shifted(shown.ids, 1 + k).flatten()[at] for k in range(self.net.config.stages)]
        for k, y in enumerate(outputs(self.net, feature, [shown.embed(x) for x in ids])):
            counted = taught(shown, places, 2 + k).among(indices)
            yield Guess(y, y, shifted(f, 1 + k).flatten(0, 1)[at], feature, counted)

    def loss_of(self, shown: Shown, guesses: Iterable[Guess]) -> tuple[Tensor, dict[str, Tensor]]:
        rows = shown.rows(self.keep)
        total, figures = torch.zeros((), device=rows.device), dict[str, Tensor]()
        for k, guess in enumerate(guesses):
            loss, hits = imitate(guess.y, rows, guess.f, rows, guess.at)
            total = total + self.decay**k * loss
            figures |= {f"{name}{k}": hit for name, hit in hits.items()}
        return total, figures


def outputs(net: Any, f: Tensor, e: list[Tensor]) -> Iterator[Tensor]:
    """The LM-head input of each head, given the feature and the embeddings of the tokens before it."""
    if isinstance(net, MLPNet):
        state = net.start(f)
        for k in range(net.config.stages):
            state = net.step(k, state, e[k])
            yield net.read(state)
        return
    assert isinstance(net, (MedusaNet, HydraNet))
    for k in range(net.config.stages):
        yield net.head(k, f) if isinstance(net, MedusaNet) else net.head(k, f, e[: k + 1])

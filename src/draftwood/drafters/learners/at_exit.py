"""Trains a net behind an early exit: at every index it imitates the distribution that the whole target has there.

loss = - sum_t m_t sum_v p_t(v) log q_t(v) / sum_t m_t        p_t, q_t: both from the tokens 0..t
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.forward import FINAL, Needs
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.positions import imitate, taught
from draftwood.drafters.learners.unrolling.attention import unrolled_attention
from draftwood.models.rope import angles, frequencies
from draftwood.train.objectives import inverse


@dataclass(frozen=True, slots=True, eq=False)
class AtExit:
    """`net` is an ExitNet or an ExitLayerNet. `share`: of the positions that teach in a step."""

    net: Any
    keep: Int[Tensor, "W"]  # ids of the draft vocabulary, ascending
    share: float = 1.0

    @property
    def needs(self) -> Needs:
        return Needs(taps=frozenset({*self.net.config.taps, FINAL}))

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"head": list(self.net.parameters())}

    def losses(self, shown: Shown, progress: float) -> Iterator[tuple[str, Tensor, dict[str, Tensor]]]:
        places = inverse(self.keep, self.net.config.layer.vocab_size)
        rows, teacher = shown.rows(self.keep), shown.features[FINAL].flatten(0, 1)
        y = self.net.read(self.outputs(shown)).flatten(0, 1)
        loss, figures = imitate(y, rows, teacher, rows, taught(shown, places, 1, self.share))
        yield "head", loss, figures

    def outputs(self, shown: Shown) -> Float[Tensor, "B T H"]:
        """The net's output at every index."""
        net, (tap,) = self.net, self.net.config.taps
        x, residual = net.enter(shown.features[tap], shown.features[tap])
        batch, length = shown.ids.shape
        at = torch.arange(length, device=x.device).repeat(batch)
        turned = net.layer.project(x.flatten(0, 1), *angles(frequencies(net.config.layer).to(x.device), at, x.dtype))
        q, k, v = (each.unflatten(0, (batch, length)).transpose(1, 2) for each in turned)
        return net.layer.tail(residual, unrolled_attention(q, [k], [v]).transpose(1, 2).flatten(2))


@dataclass(frozen=True, slots=True, eq=False)
class AtExits:
    """The same behind several exits at once: each net has a loss and optimisers of its own. `net` is an ExitsNet."""

    net: Any
    keep: Int[Tensor, "W"]
    share: float = 1.0

    @property
    def needs(self) -> Needs:
        return Needs(taps=frozenset({*self.net.config.taps, FINAL}))

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {name: list(each.parameters()) for name, each in self.net.named_children()}

    def losses(self, shown: Shown, progress: float) -> Iterator[tuple[str, Tensor, dict[str, Tensor]]]:
        for number, (name, each) in enumerate(self.net.named_children()):
            for _, loss, figures in AtExit(each, self.keep, self.share).losses(shown, progress):
                yield name, loss, {f"{key}{number}": value for key, value in figures.items()}

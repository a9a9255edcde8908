"""Trains feature drafters by unrolling: after the first step the net reads its own outputs, as it does when drafting.

Step j at index t reads the token x_{t+1+j} and its output of step j - 1, and imitates the distribution p_{t+1+j}.
It attends to the first step's keys at indices <= t, and to its own later keys at index t alone:

    step 0    k_0 .. k_t                  causal
    step j    k_0 .. k_t, then one key of each step 1 .. j at index t

Every index starts a roll-out, and one pass trains all of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.forward import FINAL, Needs
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.attention import unrolled_attention
from draftwood.drafters.learners.positions import imitate, taught
from draftwood.models.rope import angles, frequencies
from draftwood.train.objectives import inverse, shifted, smooth_l1

_NOISE = 1  # a stream of the step's generator


@dataclass(frozen=True, slots=True, eq=False)
class Unrolled:
    """`net` is an EagleNet or an Eagle3Net. Loss weights: `regress` for features, `soft` for distributions."""

    net: Any
    keep: Int[Tensor, "W"]  # ids of the draft vocabulary, ascending
    steps: int = 3
    decay: float = 0.8  # weight of step j is decay ** j
    regress: float = 0.0
    soft: float = 1.0
    noise: float = 0.0  # maximum noise on a feature, relative to the mean magnitude at its position

    @property
    def needs(self) -> Needs:
        return Needs(taps=frozenset({*self.net.config.taps, FINAL}))

    def groups(self) -> dict[str, list[nn.Parameter]]:
        rows = [self.net.lm_head.weight] if self.net.own_head else []
        found = {"head": [p for p in self.net.parameters() if not any(p is x for x in rows)], "rows": rows}
        return {name: ps for name, ps in found.items() if ps}

    def losses(self, shown: Shown, progress: float) -> Iterator[tuple[str, Tensor, dict[str, Tensor]]]:
        places = inverse(self.keep, self.net.config.layer.vocab_size)
        counted = [taught(shown, places, 2 + j) for j in range(self.steps)]
        teacher, rows = shown.features[FINAL], shown.rows(self.keep)
        weight = self.net.lm_head.weight if self.net.own_head else rows
        total, figures = torch.zeros((), device=teacher.device), {}
        for j, (a, at) in enumerate(zip(self.outputs(shown), counted, strict=True)):
            f = shifted(teacher, 1 + j).flatten(0, 1)
            loss, hits = imitate(self.net.read(a).flatten(0, 1), weight, f, rows, at)
            loss = self.soft * loss
            if self.regress:
                every = at.to(f.device).every
                loss = loss + self.regress * smooth_l1(a.flatten(0, 1).index_select(0, every), f.index_select(0, every))
            total = total + self.decay**j * loss
            figures |= {f"{name}{j}": hit for name, hit in hits.items()}
        yield "head", total, figures

    def outputs(self, shown: Shown) -> Iterator[Float[Tensor, "B T d"]]:
        """The net's output at every index, step by step."""
        net, layer = self.net, self.net.layer
        batch, length = shown.ids.shape
        device = shown.ids.device
        u = net.fuse(self._features(shown))
        freq = frequencies(net.config.layer).to(device)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for j in range(self.steps):
            x, residual = net.enter(shown.embed(shifted(shown.ids, 1 + j)), u)
            at = torch.arange(length, device=device) + j
            cos, sin = angles(freq, at.repeat(batch), x.dtype)
            q, k, v = (
                y.unflatten(0, (batch, length)).transpose(1, 2) for y in layer.project(x.flatten(0, 1), cos, sin)
            )
            keys.append(k)
            values.append(v)
            mixed = unrolled_attention(q, keys, values).transpose(1, 2).flatten(2)
            a = layer.tail(residual, mixed)
            yield a
            u = net.forward_feature(a)

    def _features(self, shown: Shown) -> list[Float[Tensor, "B T H"]]:
        """The target's features with uniform noise, scaled by magnitude because later layers are many times larger."""
        features = [shown.features[tap] for tap in self.net.config.taps]
        if not self.noise:
            return features
        source = shown.generator(_NOISE, shown.ids.device)
        found: list[Tensor] = []
        for x in features:
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            drawn = torch.rand(x.shape, generator=source, device=x.device, dtype=wide.dtype) * 2 - 1
            found.append((wide + self.noise * drawn * wide.abs().mean(-1, keepdim=True)).to(x.dtype))
        return found

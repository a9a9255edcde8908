"""Trains feature drafters by unrolling: after the first step the net reads its own outputs, as it does when drafting.

Step j at index t reads the token x_{t+1+j} and its output of step j - 1, and imitates the distribution p_{t+1+j}.
It attends to the first step's keys at indices <= t, and to its own later keys at index t alone:

    step 0    k_0 .. k_t                  causal
    step j    k_0 .. k_t, then one key of each step 1 .. j at index t

Every index starts a roll-out, and one pass trains all of them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.forward import FINAL, Needs
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.positions import Guess, imitate, taught
from draftwood.drafters.learners.unrolling.attention import unrolled_attention
from draftwood.drafters.nets.modules.layer import DraftAttention, through
from draftwood.models.rope import angles, frequencies
from draftwood.train.objectives import inverse, shifted, smooth_l1

_NOISE = 1  # a stream of the step's generator


@dataclass(frozen=True, slots=True, eq=False)
class Unrolled:
    """`net` is an EagleNet, of one layer or several, or an Eagle3Net. Loss weights: `regress` for features, `soft` for
    distributions."""

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
        yield "head", *self.loss_of(shown, self.guesses(shown))

    def guesses(self, shown: Shown) -> Iterator[Guess]:
        """Of every index, step by step."""
        places = inverse(self.keep, self.net.config.layer.vocab_size)
        counted = [taught(shown, places, 2 + j) for j in range(self.steps)]
        teacher = shown.features[FINAL]
        context = teacher.flatten(0, 1)
        for j, (a, at) in enumerate(zip(self.outputs(shown), counted, strict=True)):
            f = shifted(teacher, 1 + j).flatten(0, 1)
            y = self.net.read(a).flatten(0, 1)
            yield Guess(a.flatten(0, 1), y, f, context, at)

    def loss_of(self, shown: Shown, guesses: Iterable[Guess]) -> tuple[Tensor, dict[str, Tensor]]:
        rows = shown.rows(self.keep)
        weight = self.net.lm_head.weight if self.net.own_head else rows
        total, figures = torch.zeros((), device=rows.device), dict[str, Tensor]()
        for j, guess in enumerate(guesses):
            loss, hits = imitate(guess.y, weight, guess.f, rows, guess.at)
            loss = self.soft * loss
            if self.regress:
                every = guess.at.to(guess.f.device).every
                out, f = (x.index_select(0, every) for x in (guess.out, guess.f))
                loss = loss + self.regress * smooth_l1(out, f)
            total = total + self.decay**j * loss
            figures |= {f"{name}{j}": hit for name, hit in hits.items()}
        return total, figures

    def outputs(self, shown: Shown) -> Iterator[Float[Tensor, "B T d"]]:
        """The net's output at every index, step by step."""
        u, rollout = self.net.fuse(noisy_features(shown, self.net.config.taps, self.noise)), RollOut(self.net, shown)
        for j in range(self.steps):
            a = rollout.step(j, u)
            yield a
            u = self.net.forward_feature(a)


class RollOut:
    """Steps of a net that begin at every index of a batch. It holds the keys and values of the steps so far, by layer."""

    def __init__(self, net: Any, shown: Shown) -> None:
        self.net, self.shown = net, shown
        self.freq = frequencies(net.config.layer).to(shown.ids.device)
        self.keys: list[list[Tensor]] = [[] for _ in net.layers]
        self.values: list[list[Tensor]] = [[] for _ in net.layers]

    def step(self, j: int, u: Float[Tensor, "B T d"]) -> Float[Tensor, "B T O"]:
        """Step j at every index, reading u and the token x_{t+1+j}; the steps before it must have run."""
        x, residual = self._enter(j, u)
        turned = self._angles(j, x.dtype)

        def mix(i: int, layer: DraftAttention, x: Tensor) -> Tensor:
            q = self._project(i, layer, x, turned)
            return unrolled_attention(q, self.keys[i], self.values[i]).transpose(1, 2).flatten(2)

        return through(self.net.layers, x, residual, mix)

    def entries(self, j: int, u: Float[Tensor, "B T d"]) -> None:
        """The keys and values of step j alone, of a net with one layer."""
        (layer,) = self.net.layers
        x, _ = self._enter(j, u)
        self._project(0, layer, x, self._angles(j, x.dtype))

    def _enter(self, j: int, u: Tensor) -> tuple[Tensor, Tensor]:
        return self.net.enter(self.shown.embed(shifted(self.shown.ids, 1 + j)), u)

    def _angles(self, j: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        batch, length = self.shown.ids.shape
        at = torch.arange(length, device=self.shown.ids.device) + j
        return angles(self.freq, at.repeat(batch), dtype)

    def _project(self, i: int, layer: DraftAttention, x: Tensor, turned: tuple[Tensor, Tensor]) -> Tensor:
        shape = self.shown.ids.shape
        q, k, v = (y.unflatten(0, shape).transpose(1, 2) for y in layer.project(x.flatten(0, 1), *turned))
        self.keys[i].append(k)
        self.values[i].append(v)
        return q


def noisy_features(shown: Shown, taps: tuple[int, ...], noise: float) -> list[Float[Tensor, "B T H"]]:
    """The target's features with uniform noise, scaled by magnitude because later layers are many times larger."""
    features = [shown.features[tap] for tap in taps]
    if not noise:
        return features
    source = shown.generator(_NOISE, shown.ids.device)
    found: list[Tensor] = []
    for x in features:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        drawn = torch.rand(x.shape, generator=source, device=x.device, dtype=wide.dtype) * 2 - 1
        found.append((wide + noise * drawn * wide.abs().mean(-1, keepdim=True)).to(x.dtype))
    return found

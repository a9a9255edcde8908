"""Trains a small language model in two stages: on all text first, then on the target's distributions in its answers.

One with exits learns at all of them in every step: the loss is the mean of what each exit has,

loss = 1/E sum_e CE(target, softmax(W read(h_e)))        h_e: behind exit e; `read` (norm and projection) is shared
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.forward import FINAL, Needs
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.positions import imitate, taught
from draftwood.drafters.nets.modules.small_lm import LanguageNet
from draftwood.models.rope import angles, frequencies
from draftwood.train.objectives import hard_cross_entropy, inverse, shifted


@dataclass(frozen=True, slots=True, eq=False)
class Language:
    """align False: the next token of every text. align True: the target's distributions in answers, and in the prompt share
    of prompts."""

    net: LanguageNet
    keep: Int[Tensor, "W"]
    align: bool
    needs: Needs = Needs(taps=frozenset({FINAL}))

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"model": [p for p in self.net.parameters() if p.requires_grad]}

    def losses(self, shown: Shown, progress: float) -> Iterator[tuple[str, Tensor, dict[str, Tensor]]]:
        """`hit0`, `hit1`, ..: of each exit."""
        losses: list[Tensor] = []
        figures: dict[str, Tensor] = {}
        for i, h in enumerate(self.exits(shown)):
            loss, hits = self._loss(self.net.read(h).flatten(0, 1), shown)
            losses.append(loss)
            figures |= {f"{name}{i}": hit for name, hit in hits.items()}
        yield "model", torch.stack(losses).mean(), figures

    def _loss(self, y: Float[Tensor, "N H"], shown: Shown) -> tuple[Tensor, dict[str, Tensor]]:
        places = inverse(self.keep, self.net.config.layer.vocab_size)
        rows = shown.rows(self.keep)
        if self.align:
            return imitate(y, rows, shown.features[FINAL].flatten(0, 1), rows, taught(shown, places, 1))
        label = places[shifted(shown.text, 1)]
        at = (shifted(shown.live, 1) & (label >= 0)).flatten().nonzero()[:, 0]
        at, label = (x.to(y.device, non_blocking=True) for x in (at, label.flatten()[at]))
        loss, hit = hard_cross_entropy(y.index_select(0, at), rows, label, shown.features[FINAL].dtype)
        return loss, {"hit": hit}

    def hidden(self, shown: Shown) -> Float[Tensor, "B T d"]:
        """Behind the last layer."""
        return list(self._residuals(shown))[-1]

    def exits(self, shown: Shown) -> list[Float[Tensor, "B T d"]]:
        """Behind each exit; a net without any has the last layer alone."""
        layers = self.net.config.exits or (self.net.config.layer.num_layers,)
        return [h for i, h in enumerate(self._residuals(shown), 1) if i in layers]

    def _residuals(self, shown: Shown) -> Iterator[Float[Tensor, "B T d"]]:
        """Behind each layer, one after another."""
        net, (batch, length) = self.net, shown.ids.shape
        h = net.enter(shown.embed(shown.ids))
        at = torch.arange(length, device=h.device).repeat(batch)
        cos, sin = angles(frequencies(net.config.layer).to(h.device), at, h.dtype)
        for i, layer in enumerate(net.layers):
            x = net.attention_input(i, h)
            q, k, v = (
                y.unflatten(0, (batch, length)).transpose(1, 2)
                for y in layer.project(x.flatten(0, 1), cos, sin)  # type: ignore[operator]
            )
            group = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            h = layer.tail(h, mixed)  # type: ignore[operator]
            yield h

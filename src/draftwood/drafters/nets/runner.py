"""A feature net as a model: pairs of (feature, next token) in, the draft's own feature and logits out.

Index t of a text is the pair (f_t, x_{t+1}): its row stands at position t, one before the token it reads.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.host import put
from draftwood.core.law import top
from draftwood.core.passes import RowSpec, Tokens
from draftwood.core.protocols import Cache, Model
from draftwood.models.attention import torch_attention, visible_masks
from draftwood.models.rope import angles, frequencies


class FeatureModel(Protocol):
    """What the drafter asks of a net, whatever lane runs it."""

    @property
    def taps(self) -> tuple[int, ...]: ...
    @property
    def ids(self) -> Int[Tensor, "W"] | None:
        """Token of each column of the logits; None: the whole vocabulary."""
        ...

    @property
    def row_specs(self) -> tuple[RowSpec, ...]: ...
    def fuse(self, features: Sequence[Float[Tensor, "T H"]]) -> Float[Tensor, "T d"]:
        """The target's features, in the order of `taps`, as the first input."""
        ...

    def forward(self, x: Tokens, cache: Cache) -> tuple[Float[Tensor, "T d"], Float[Tensor, "U W"]]:
        """x.hidden is what each token reads beside its embedding. Out: what its children will read, and logits of `want`."""
        ...

    def ranked(
        self, logits: Float[Tensor, "U W"], heat: list[float], k: int
    ) -> tuple[Float[Tensor, "U k"], Int[Tensor, "U k"]]:
        """The k most probable tokens of softmax(logits / heat), row by row in falling order: probabilities, tokens."""
        ...


class FloatRunner:
    """The net's own modules, in float."""

    def __init__(self, net: Any, target: Model, ids: Int[Tensor, "W"] | None) -> None:
        self.net, self.target, self.ids = net, target, ids
        self._freq = frequencies(net.config.layer).to(_device(net))

    @property
    def taps(self) -> tuple[int, ...]:
        return self.net.config.taps

    @property
    def dtype(self) -> torch.dtype:
        return self.net.fc.weight.dtype

    @property
    def row_specs(self) -> tuple[RowSpec, ...]:
        c = self.net.config.layer
        return tuple(RowSpec(f"{kind}0", c.num_kv_heads, c.head_dim, self.dtype) for kind in "kv")

    @torch.inference_mode()
    def fuse(self, features: Sequence[Float[Tensor, "T H"]]) -> Float[Tensor, "T d"]:
        return self.net.fuse([f.to(self.dtype) for f in features])

    @torch.inference_mode()
    def forward(self, x: Tokens, cache: Cache) -> tuple[Float[Tensor, "T d"], Float[Tensor, "U W"]]:
        net, layer = self.net, self.net.layer
        assert x.hidden is not None
        inner, residual = net.enter(self.target.embed(x.ids).to(self.dtype), x.hidden.to(self.dtype))
        segments = cache.stage(x)
        masks = visible_masks(segments, x, self.dtype, layer.config.sliding_window)
        q, k, v = layer.project(inner, *angles(self._freq, x.positions, self.dtype))
        mixed = torch_attention(q, k, v, cache.store("k0"), cache.store("v0"), x, segments, masks)
        a = layer.tail(residual, mixed)
        y = net.read(a[x.want])
        logits = net.lm_head(y) if net.own_head else self.target.head(y, ids=self.ids, norm=False)
        return net.forward_feature(a), logits

    @torch.inference_mode()
    def ranked(
        self, logits: Float[Tensor, "U W"], heat: list[float], k: int
    ) -> tuple[Float[Tensor, "U k"], Int[Tensor, "U k"]]:
        x = logits if logits.dtype == torch.float64 else logits.float()
        x = (x - x.amax(-1, keepdim=True)) / put(heat, x.device, x.dtype)[:, None]
        prob, columns = top(x.softmax(-1), k)
        return prob, columns if self.ids is None else self.ids[columns]


def _device(net: Any) -> torch.device:
    return next(net.parameters()).device

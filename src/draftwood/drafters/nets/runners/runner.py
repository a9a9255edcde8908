"""A feature net as a model: pairs of (feature, next token) in, the draft's own feature and logits out.

Index t of a text is the pair (f_t, x_{t+1}): its cache entry stands at position t, one before the token it reads.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.cache.dense import DenseCache
from draftwood.core.config import ModelConfig
from draftwood.core.forward import CacheSpec, ForwardInput
from draftwood.core.host import put
from draftwood.core.protocols import Runner
from draftwood.core.sampling.truncation import top
from draftwood.drafters.nets.files.refresh import refresh_net
from draftwood.drafters.nets.modules.layer import DraftAttention, through
from draftwood.models.attention import torch_attention, visible_masks
from draftwood.models.rope import angles, frequencies
from draftwood.runners.with_cache import WithCache


class FeatureModel(Protocol):
    """What the drafter asks of a net, whatever backend runs it."""

    @property
    def taps(self) -> tuple[int, ...]: ...
    @property
    def ids(self) -> Int[Tensor, "W"] | None:
        """Token of each column of the logits; None: the whole vocabulary."""
        ...

    @property
    def max_positions(self) -> int:
        """Of its target."""
        ...

    def open(self, slots: int, capacity: int) -> "FeatureModel":
        """The same weights with a cache of their own."""
        ...

    def refresh(self, weights: Mapping[str, Tensor]) -> None:
        """New weights, by the names of `Head.tensors`; what is not named stays. Everything opened from the same weights runs
        with them from its next pass on; cache entries stay as they were written. Between rounds only. WeightsError if a
        name or a shape is wrong: then nothing has changed."""
        ...

    def admit(self, slot: int, tokens: Sequence[int], most: int | None = None, before: Sequence[int] = ()) -> int: ...
    def length(self, slot: int) -> int: ...
    def reserve(self, slots: Sequence[int], extra: Sequence[int]) -> None: ...
    def commit(
        self, slots: Sequence[int], entries: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]
    ) -> None: ...
    def free(self, slots: Sequence[int]) -> None: ...
    def fuse(self, features: Sequence[Float[Tensor, "T H"]]) -> Float[Tensor, "T d"]:
        """The target's features, in the order of `taps`, as the first input."""
        ...

    def execute(
        self, x: ForwardInput, only: Int[Tensor, "W"] | None = None
    ) -> tuple[Float[Tensor, "T d"], Float[Tensor, "U W"]]:
        """x.hidden is what each token reads beside its embedding. Out: what its children will read, and logits of `want`.
        `only`: some of `ids`, which are then the columns. If nothing is wanted, only entries are made, and outputs are
        any."""
        ...

    def ranked(
        self, logits: Float[Tensor, "U W"], temperature: list[float], k: int, only: Int[Tensor, "W"] | None = None
    ) -> tuple[Float[Tensor, "U k"], Int[Tensor, "U k"]]:
        """The k most probable tokens of softmax(logits / temperature), each in falling order: probabilities, tokens.
        `only` as it was in the pass that made the logits."""
        ...

    def best_chains(
        self,
        x: ForwardInput,
        temperature: list[float],
        steps: int,
        only: Int[Tensor, "W"] | None = None,
        least: float = 0.0,
        k: int = 1,
    ) -> tuple[Int[Tensor, "B steps k"], Float[Tensor, "B steps k"]] | None:
        """The known pairs of each text, then `steps` tokens one behind the other, each the most probable after those before
        it, in one call and without a host read. Of every step its `k` most probable tokens, the chain's first, with their
        probabilities; fewer if the head has fewer. Steps behind a path whose probability is below `least` need not be run;
        they have probability 0. None if it cannot."""
        ...

    def drawn_chain(
        self, x: ForwardInput, temperature: float, u: Float[Tensor, "steps 3"], only: Int[Tensor, "W"] | None = None
    ) -> tuple[Int[Tensor, "steps"], Float[Tensor, "steps W"]] | None:
        """The known pairs of one text, then tokens one behind the other, in one call: each is drawn by three uniforms from
        softmax(logits / temperature). The tokens, and what they were drawn from. None if it cannot."""
        ...

    def shares(self, logits: Float[Tensor, "U W"], temperature: list[float]) -> Float[Tensor, "U W"]:
        """softmax(logits / temperature), to the bit what `drawn_chain` draws from; NaN where the logits are."""
        ...


class DrawnByLevels:
    """What a model says that draws chains level by level."""

    def drawn_chain(
        self, x: ForwardInput, temperature: float, u: Float[Tensor, "steps 3"], only: Int[Tensor, "W"] | None = None
    ) -> None:
        """It cannot."""

    @torch.inference_mode()
    def shares(self, logits: Float[Tensor, "U W"], temperature: list[float]) -> Float[Tensor, "U W"]:
        x = logits if logits.dtype == torch.float64 else logits.float()
        return ((x - x.amax(-1, keepdim=True)) / put(temperature, x.device, x.dtype)[:, None]).softmax(-1)


class FeatureNet(DrawnByLevels):
    """What runners of a net's own modules, in float, have in common."""

    def __init__(self, net: Any, target: Runner, ids: Int[Tensor, "W"] | None) -> None:
        self.net, self.target, self.ids = net, target, ids
        self.max_positions = target.info.max_positions
        self.taps: tuple[int, ...] = net.config.taps
        self.dtype: torch.dtype = next(net.parameters()).dtype
        c = net.config.layer
        self.cache_specs = cache_specs(c, len(net.layers), self.dtype)
        self._freq = frequencies(c).to(target.info.device)

    @torch.inference_mode()
    def fuse(self, features: Sequence[Float[Tensor, "T H"]]) -> Float[Tensor, "T d"]:
        return self.net.fuse([f.to(self.dtype) for f in features])

    @torch.inference_mode()
    def ranked(
        self, logits: Float[Tensor, "U W"], temperature: list[float], k: int, only: Int[Tensor, "W"] | None = None
    ) -> tuple[Float[Tensor, "U k"], Int[Tensor, "U k"]]:
        x = logits if logits.dtype == torch.float64 else logits.float()
        if any(t != 1 for t in temperature):
            x = (x - x.amax(-1, keepdim=True)) / put(temperature, x.device, x.dtype)[:, None]
        prob, columns = top(x.softmax(-1), k)
        ids = self.ids if only is None else only
        return prob, columns if ids is None else ids[columns]


class FloatRunner(FeatureNet, WithCache):
    """On stock operations, over a dense cache."""

    def __init__(self, net: Any, target: Runner, ids: Int[Tensor, "W"] | None, cache: DenseCache | None = None) -> None:
        FeatureNet.__init__(self, net, target, ids)
        WithCache.__init__(self, cache)

    def open(self, slots: int, capacity: int) -> "FloatRunner":
        cache = DenseCache(self.cache_specs, slots=slots, capacity=capacity, device=self.target.info.device)
        return FloatRunner(self.net, self.target, self.ids, cache)

    def refresh(self, weights: Mapping[str, Tensor]) -> None:
        refresh_net(self.net, weights)

    @torch.inference_mode()
    def execute(
        self, x: ForwardInput, only: Int[Tensor, "W"] | None = None
    ) -> tuple[Float[Tensor, "T d"], Float[Tensor, "U W"]]:
        net, cache = self.net, self.cache
        assert x.hidden is not None
        inner, residual = net.enter(self.target.embed(x.ids).to(self.dtype), x.hidden.to(self.dtype))
        segments = cache.stage(x)
        masks = visible_masks(segments, x, self.dtype, net.config.layer.sliding_window)
        turned = angles(self._freq, x.positions, self.dtype)

        def mix(i: int, layer: DraftAttention, inner: Tensor) -> Tensor:
            q, k, v = layer.project(inner, *turned)
            return torch_attention(q, k, v, cache.store(f"k{i}"), cache.store(f"v{i}"), x, segments, masks)

        a = through(net.layers, inner, residual, mix)
        y = net.read(a[x.want])
        return net.forward_feature(a), self._logits(y, only)

    def _logits(self, y: Float[Tensor, "U d"], only: Int[Tensor, "W"] | None) -> Float[Tensor, "U W"]:
        net = self.net
        if not net.own_head:
            return self.target.head(y, ids=self.ids if only is None else only, norm=False)
        return net.lm_head(y) if only is None else F.linear(y, net.lm_head.weight[places(self.ids, only)])

    def best_chains(
        self,
        x: ForwardInput,
        temperature: list[float],
        steps: int,
        only: Int[Tensor, "W"] | None = None,
        least: float = 0.0,
        k: int = 1,
    ) -> None:
        """Step by step: a call of several steps would save nothing here."""


def cache_specs(layer: ModelConfig, count: int, dtype: torch.dtype) -> tuple[CacheSpec, ...]:
    """Keys and values of so many layers."""
    names = (f"{kind}{i}" for i in range(count) for kind in "kv")
    return tuple(CacheSpec(name, layer.num_kv_heads, layer.head_dim, dtype) for name in names)


def places(ids: Int[Tensor, "V"] | None, only: Int[Tensor, "W"]) -> Int[Tensor, "W"]:
    """Where these tokens' rows lie in a table whose rows are `ids`, None: all tokens in order."""
    if ids is None:
        return only
    rising, order = ids.sort()
    return order[torch.searchsorted(rising, only)]

"""One decoder for the Llama, Qwen2, Qwen3, Mistral, Gemma-2 and Gemma-3 families.

A pass may tap any layer, run a part of the layers from given hidden states, leave out attention or MLP sub-layers, and
compute only some LM-head rows. The backend decides how a linear layer runs.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.config import ModelConfig
from draftwood.core.forward import ALL, FINAL, CacheSpec, ForwardInput, ForwardOutput, LayerPlan, logit_places
from draftwood.core.model_info import ModelInfo
from draftwood.core.protocols import Cache
from draftwood.models.backends.int8_weights import PRODUCTS, norm_names
from draftwood.models.gates import GATES
from draftwood.models.layer_group import GroupAttend, LayerGroup, StackedLinear, float_group_attention
from draftwood.models.rope import angles, frequencies, length_of, rotate
from draftwood.models.stacked_attention import float_attention, float_attention_mask

_MANY_ROWS, _SUBSETS = 1024, 4  # rows of W that are worth keeping, and selections of rows that are kept


class Linear(Protocol):
    """A linear layer: y = x W^T + b, only some of its outputs, or some rows of W themselves."""

    def __call__(self, x: Float[Tensor, "*S in"]) -> Float[Tensor, "*S out"]: ...
    def rows(self, x: Float[Tensor, "*S in"], ids: Int[Tensor, "W"]) -> Float[Tensor, "*S W"]: ...
    def take(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S in"]: ...


class FloatLinear(nn.Module):
    """One plain product in the dtype of W. Not batch-invariant: last bits may depend on how many tokens run together."""

    def __init__(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, "out"] | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        # By the identity of `ids`, which is stored too, so that its identity is not used again.
        self._taken: dict[int, tuple[Tensor, int, Tensor]] = {}

    def forward(self, x: Float[Tensor, "*S in"]) -> Float[Tensor, "*S out"]:
        return F.linear(x, self.weight, self.bias)

    def rows(self, x: Float[Tensor, "*S in"], ids: Int[Tensor, "W"]) -> Float[Tensor, "*S W"]:
        """Only the outputs of these rows of W."""
        return F.linear(x, self._rows(ids), None if self.bias is None else self.bias[ids])

    def _rows(self, ids: Int[Tensor, "W"]) -> Float[Tensor, "W in"]:
        """These rows of W. Those of a trimmed vocabulary, which comes again in every pass as the same tensor, are gathered
        once: gathering takes longer than the product. On an accelerator they are not kept, because a captured graph would
        outlive them; nor where W learns."""
        w = self.weight
        if not w.is_cpu or w.requires_grad or len(ids) < _MANY_ROWS:
            return w[ids]
        version = 0 if w.is_inference() else w._version
        held = self._taken.get(id(ids))
        if held is None or held[0] is not ids or held[1] != version:
            if len(self._taken) >= _SUBSETS:
                self._taken.pop(next(iter(self._taken), 0), None)  # another thread may have been first
            with torch.inference_mode(False), torch.no_grad():  # also a pass that trains may read them
                held = self._taken[id(ids)] = ids, version, w[ids]
        return held[2]

    def take(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S in"]:
        """These rows of W, as an embedding."""
        return F.embedding(ids, self.weight)


@dataclass(frozen=True, slots=True)
class Backend:
    """How the steps of a layer run that are not linear layers. `name` None: the dtype names the backend.

    `attention_mask` is computed once per pass, in the form that `attention` takes in every layer. `group_attention`: that of
    several layers at once, over stacked weights; None: they run one after another.
    """

    name: str | None = None
    batch_invariant: bool = False
    attention: Callable[..., Tensor] = float_attention
    attention_mask: Callable[..., Any] = float_attention_mask
    gates: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = field(default_factory=lambda: GATES)  # by activation
    group_attention: Callable[..., Tensor] | None = float_group_attention


class Layer(nn.Module):
    """Attention and gated MLP of one layer. q, k and v are one product, gate and up another."""

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        products: Mapping[str, Linear],
        norms: Mapping[str, Tensor],
        backend: Backend,
    ) -> None:
        super().__init__()
        self.config, self.index, self.backend = config, index, backend
        self.qkv, self.out = products["qkv"], products["out"]
        self.gate_up, self.down = products["gate_up"], products["down"]
        self.attention_norm, self.mlp_norm = _frozen(norms["attention_norm"]), _frozen(norms["mlp_norm"])
        self.q_norm, self.k_norm = _frozen(norms.get("q_norm")), _frozen(norms.get("k_norm"))
        self.post_attention_norm = _frozen(norms.get("post_attention_norm"))
        self.post_mlp_norm = _frozen(norms.get("post_mlp_norm"))
        self._gate = backend.gates[config.activation]
        scale = config.query_scale
        self._query_gain = None if scale is None else scale * config.head_dim**0.5  # attention divides by the root

    def attend(self, h: Float[Tensor, "T H"], ctx: "Pass") -> Float[Tensor, "T H"]:
        """What attention adds to the residual."""
        c = self.config
        x = F.rms_norm(h, (c.hidden_size,), self.attention_norm, c.rms_eps)
        qkv = self.qkv(x).view(len(h), c.num_heads + 2 * c.num_kv_heads, c.head_dim)
        qk, v = qkv[:, : c.num_heads + c.num_kv_heads], qkv[:, c.num_heads + c.num_kv_heads :]
        if self.q_norm is not None and self.k_norm is not None:
            q = F.rms_norm(qk[:, : c.num_heads], (c.head_dim,), self.q_norm, c.rms_eps)
            k = F.rms_norm(qk[:, c.num_heads :], (c.head_dim,), self.k_norm, c.rms_eps)
            qk = torch.cat([q, k], dim=1)
        qk = rotate(qk, *ctx.turn(c.is_local(self.index)))
        q, k = qk[:, : c.num_heads], qk[:, c.num_heads :]
        q = q if self._query_gain is None else q * self._query_gain
        return self._normed(self.out(ctx.attend(self.index, q, k, v)), self.post_attention_norm)

    def _normed(self, y: Float[Tensor, "T H"], norm: nn.Parameter | None) -> Float[Tensor, "T H"]:
        return y if norm is None else F.rms_norm(y, (self.config.hidden_size,), norm, self.config.rms_eps)

    def keys_values(
        self, h: Float[Tensor, "T H"], cos: Float[Tensor, "T 1 d"], sin: Float[Tensor, "T 1 d"]
    ) -> tuple[Float[Tensor, "T kv d"], Float[Tensor, "T kv d"]]:
        """What attention would write for these tokens."""
        c = self.config
        x = F.rms_norm(h, (c.hidden_size,), self.attention_norm, c.rms_eps)
        first, count = c.num_heads * c.head_dim, 2 * c.num_kv_heads
        rows = torch.arange(first, first + count * c.head_dim, device=h.device)
        k, v = self.qkv.rows(x, rows).view(len(h), count, c.head_dim).chunk(2, dim=1)
        if self.k_norm is not None:
            k = F.rms_norm(k, (c.head_dim,), self.k_norm, c.rms_eps)
        return rotate(k, cos, sin), v

    def mlp(self, h: Float[Tensor, "T H"]) -> Float[Tensor, "T H"]:
        """What the MLP adds to the residual."""
        x = F.rms_norm(h, (self.config.hidden_size,), self.mlp_norm, self.config.rms_eps)
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self._normed(self.down(self._gate(gate, up)), self.post_mlp_norm)


Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q, k, v) -> output of its heads, after k and v are written: [T heads d], [T kv d] twice -> [T heads*d]."""


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """What every layer of one pass shares."""

    attend: Attend
    group: GroupAttend | None  # None: layers that read the same input attend one after another
    cos: Float[Tensor, "T 1 d"]
    sin: Float[Tensor, "T 1 d"]
    local: tuple[Float[Tensor, "T 1 d"], Float[Tensor, "T 1 d"]] | None = None  # of layers with a rope of their own

    def turn(self, local: bool) -> tuple[Float[Tensor, "T 1 d"], Float[Tensor, "T 1 d"]]:
        """Cosines and sines of a layer."""
        return self.local if local and self.local is not None else (self.cos, self.sin)


class Decoder(nn.Module):
    """A whole model: embedding, layers, final norm, LM head."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: Linear,
        layers: Iterable[Layer],
        norm: Tensor,
        lm_head: Linear,
        backend: Backend,
    ) -> None:
        super().__init__()
        self.config, self._backend = config, backend
        self.embedding, self.lm_head = embedding, lm_head  # the same object if they are tied
        self.layers = nn.ModuleList(layers)
        self.norm = _frozen(norm)
        self._groups: dict[range, LayerGroup] = {}  # made when a plan first asks for them
        self.register_buffer("freq", frequencies(config).to(norm.device), persistent=False)
        self.register_buffer("local_freq", frequencies(config, local=True).to(norm.device), persistent=False)
        self.register_buffer("scale", torch.tensor(config.embedding_scale).to(norm), persistent=False)

    @classmethod
    def from_tensors(
        cls,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> "Decoder":
        """From tensors under their Hugging Face names; the loader has checked names and shapes."""
        weights = {name: t.to(device=device, dtype=dtype) for name, t in tensors.items()}
        backend = Backend()

        def norm(name: str) -> Tensor:
            if not config.norm_offset:
                return weights[name]
            return (tensors[name].double() + config.norm_offset).to(device=device, dtype=dtype)

        def joined(index: int, names: tuple[str, ...]) -> FloatLinear:
            prefix = f"model.layers.{index}."
            biases = [weights[f"{prefix}{n}.bias"] for n in names if f"{prefix}{n}.bias" in weights]
            weight = torch.cat([weights[f"{prefix}{n}.weight"] for n in names])
            return FloatLinear(weight, torch.cat(biases) if biases else None)

        def layer(index: int) -> Layer:
            named = {name: f"model.layers.{index}.{hf_name}.weight" for name, hf_name in norm_names(config).items()}
            norms = {name: norm(hf_name) for name, hf_name in named.items() if hf_name in weights}
            return Layer(config, index, {name: joined(index, n) for name, n in PRODUCTS.items()}, norms, backend)

        embedding = FloatLinear(weights["model.embed_tokens.weight"])
        head = embedding if config.tie_embeddings else FloatLinear(weights["lm_head.weight"])
        layers = [layer(i) for i in range(config.num_layers)]
        return Decoder(config, embedding, layers, norm("model.norm.weight"), head, backend)

    @property
    def info(self) -> ModelInfo:
        c = self.config
        return ModelInfo(
            vocab_size=c.vocab_size,
            num_layers=len(self.layers),
            hidden_size=c.hidden_size,
            max_positions=c.max_positions,
            device=self.device,
            dtype=self.dtype,
            backend=self._backend.name or str(self.dtype).removeprefix("torch."),
            batch_invariant=self._backend.batch_invariant,
            config=c,
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.dtype  # type: ignore[union-attr]

    @property
    def device(self) -> torch.device:
        return self.norm.device  # type: ignore[union-attr]

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        c = self.config
        return tuple(
            CacheSpec(f"{kind}{i}", c.num_kv_heads, c.head_dim, self.dtype)
            for i in range(len(self.layers))
            for kind in "kv"
        )

    def first_layers(self, count: int) -> "Decoder":
        """A shallow model that shares this one's weights: the first layers, then the same norm and head."""
        layers: Any = self.layers[:count]
        return Decoder(self.config, self.embedding, layers, self.norm, self.lm_head, self._backend)  # type: ignore[arg-type]

    @torch.inference_mode()
    def forward(
        self, x: ForwardInput, cache: Cache, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL
    ) -> ForwardOutput:
        """One pass over T tokens; logits only where wanted, and only when the last layer is reached."""
        last = len(self.layers)
        stop = last if layers.stop is None else layers.stop
        h = self.embed(x.ids) if x.hidden is None else x.hidden
        attend, group = self._attention(x, cache)
        h, features = self.run(h, self.angled(attend, x.positions, group), taps, layers)
        logits = h.new_zeros(0, self.config.vocab_size)
        if stop == last and len(x.want):
            logits = self.head(h[x.want])
        return ForwardOutput(
            logits=logits, hidden=h, logits_index=logit_places(x.want, x.size), features=features, tokens=x
        )

    def _attention(self, x: ForwardInput, cache: Cache) -> tuple[Attend, GroupAttend]:
        """The backend's attention over this pass, of one layer and of several."""
        segments, backend, c = cache.stage(x), self._backend, self.config
        masks: dict[int | None, Any] = {}  # by window

        def mask(index: int) -> Any:
            window = c.window(index)
            if window not in masks:
                masks[window] = backend.attention_mask(segments, x, cache, self.dtype, window)
            return masks[window]

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = cache.store(f"k{index}"), cache.store(f"v{index}")
            cap = {} if c.attention_cap is None else {"cap": c.attention_cap}
            return backend.attention(q, k, v, keys, values, x, segments, mask(index), **cap)

        def group(layers: range, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            assert backend.group_attention is not None
            return backend.group_attention(q, k, v, cache.pairs(layers), x, segments, mask(layers.start))

        return attend, group

    def angled(self, attend: Attend, positions: Int[Tensor, "T"], group: GroupAttend | None = None) -> Pass:
        """What the layers of a pass over tokens at these positions share. `group`: the attention of several at once."""
        together = group if self._backend.group_attention is not None and self.config.uniform else None
        local = self._turned(positions, True) if self.config.local_rope_theta is not None else None
        return Pass(attend, together, *self._turned(positions, False), local)

    def _turned(
        self, positions: Int[Tensor, "T"], local: bool
    ) -> tuple[Float[Tensor, "T 1 d"], Float[Tensor, "T 1 d"]]:
        freq = self.local_freq if local else self.freq
        return angles(freq, positions, self.dtype, length_of(self.config, local=local))  # type: ignore[arg-type]

    def keys_values(
        self, layer: int, h: Float[Tensor, "T H"], positions: Int[Tensor, "T"]
    ) -> tuple[Float[Tensor, "T kv d"], Float[Tensor, "T kv d"]]:
        """What a layer would write for tokens at these positions, from the residual before it."""
        return self._layer(layer).keys_values(h, *self._turned(positions, self.config.is_local(layer)))

    def run(
        self, h: Float[Tensor, "T H"], ctx: Pass, taps: frozenset[int], layers: LayerPlan
    ) -> tuple[Float[Tensor, "T H"], dict[int, Float[Tensor, "T H"]]]:
        """Run the layers of a plan: the residual after them, and the tapped residuals."""
        features: dict[int, Tensor] = {layers.start: h} if layers.start in taps else {}
        for group in layers.groups(len(self.layers)):
            mixed = self._attentions(group, h, ctx, layers)
            for i in group:
                h = h + mixed[i] if i in mixed else h
                h = h if i in layers.skip_mlp else h + self._layer(i).mlp(h)
            if group.stop in taps:
                features[group.stop] = h
        if FINAL in taps:
            features[FINAL] = self._final(h)
        return h, features

    def _attentions(self, group: range, h: Tensor, ctx: Pass, plan: LayerPlan) -> dict[int, Tensor]:
        """What the attentions of layers add to the residual, all from the same input. Consecutive ones run together: their
        cache entries lie side by side."""
        reading = [i for i in group if i not in plan.skip_attention]
        if len(reading) < 2 or ctx.group is None:
            return {i: self._layer(i).attend(h, ctx) for i in reading}
        found: dict[int, Tensor] = {}
        for each in _runs(reading):
            if len(each) == 1:
                found[each.start] = self._layer(each.start).attend(h, ctx)
                continue
            found |= zip(each, self._group(each).attend(h, ctx.group, ctx.cos, ctx.sin), strict=True)
        return found

    def _group(self, layers: range) -> LayerGroup:
        if layers not in self._groups:
            each = [self._layer(i) for i in layers]
            self._groups[layers] = LayerGroup(each, _stacked(x.qkv for x in each), _stacked(x.out for x in each))
        return self._groups[layers]

    def _layer(self, index: int) -> Layer:
        layer = self.layers[index]
        assert isinstance(layer, Layer)
        return layer

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        h = self.embedding.take(ids)
        return h if self.config.embedding_scale == 1.0 else h * self.scale  # pyright: ignore[reportOperatorIssue]

    def head(
        self, hidden: Float[Tensor, "*S H"], *, ids: Int[Tensor, "W"] | None = None, norm: bool = True
    ) -> Float[Tensor, "*S W"]:
        """Logits of all tokens, or only those of the LM-head rows `ids`."""
        hidden = self._final(hidden) if norm else hidden
        logits = self.lm_head(hidden) if ids is None else self.lm_head.rows(hidden, ids)
        cap = self.config.logit_cap
        if cap is None:
            return logits
        if (
            self._backend.batch_invariant
        ):  # tanh may compute the last numbers of a tensor by another function; exp does not
            return (1 - 2 / (logits * (2 / cap)).exp_().add_(1)) * cap
        return (logits / cap).tanh() * cap

    def _final(self, h: Tensor) -> Tensor:
        return F.rms_norm(h, (self.config.hidden_size,), self.norm, self.config.rms_eps)


def _stacked(linears: Iterable[Linear]) -> StackedLinear:
    floats = [each for each in linears if isinstance(each, FloatLinear)]
    return StackedLinear([x.weight for x in floats], [x.bias for x in floats if x.bias is not None])


def _runs(numbers: list[int]) -> list[range]:
    """Rising numbers as ranges of consecutive ones."""
    starts = [i for i in numbers if i - 1 not in numbers]
    ends = [i + 1 for i in numbers if i + 1 not in numbers]
    return [range(*each) for each in zip(starts, ends, strict=True)]


def _frozen(x: Tensor | None) -> nn.Parameter | None:
    return None if x is None else nn.Parameter(x, requires_grad=False)

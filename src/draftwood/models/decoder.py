"""One decoder for the Llama, Qwen2, Qwen3 and Mistral families.

A pass may tap any layer, run a part of the layers from given hidden states, leave out attention or MLP sub-layers, and
compute only some LM-head rows. The backend decides how a linear layer runs.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.config import ModelConfig
from draftwood.core.forward import ALL, FINAL, CacheSpec, ForwardInput, ForwardOutput, LayerPlan, logit_places
from draftwood.core.model_info import ModelInfo
from draftwood.core.protocols import Cache
from draftwood.models.backends.int8_weights import NORMS, PRODUCTS
from draftwood.models.rope import angles, frequencies, rotate
from draftwood.models.stacked_attention import float_attention, float_attention_mask


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

    def forward(self, x: Float[Tensor, "*S in"]) -> Float[Tensor, "*S out"]:
        return F.linear(x, self.weight, self.bias)

    def rows(self, x: Float[Tensor, "*S in"], ids: Int[Tensor, "W"]) -> Float[Tensor, "*S W"]:
        """Only the outputs of these rows of W."""
        return F.linear(x, self.weight[ids], None if self.bias is None else self.bias[ids])

    def take(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S in"]:
        """These rows of W, as an embedding."""
        return F.embedding(ids, self.weight)


def silu_gate(gate: Float[Tensor, "T I"], up: Float[Tensor, "T I"]) -> Float[Tensor, "T I"]:
    return F.silu(gate) * up


@dataclass(frozen=True, slots=True)
class Backend:
    """How the steps of a layer run that are not linear layers. `name` None: the dtype names the backend.

    `attention_mask` is computed once per pass, in the form that `attention` takes in every layer.
    """

    name: str | None = None
    batch_invariant: bool = False
    attention: Callable[..., Tensor] = float_attention
    attention_mask: Callable[..., Any] = float_attention_mask
    gate: Callable[[Tensor, Tensor], Tensor] = silu_gate


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
        qk = rotate(qk, ctx.cos, ctx.sin)
        return self.out(ctx.attend(self.index, qk[:, : c.num_heads], qk[:, c.num_heads :], v))

    def mlp(self, h: Float[Tensor, "T H"]) -> Float[Tensor, "T H"]:
        """What the MLP adds to the residual."""
        x = F.rms_norm(h, (self.config.hidden_size,), self.mlp_norm, self.config.rms_eps)
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.backend.gate(gate, up))


Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q, k, v) -> output of its heads, after k and v are written: [T heads d], [T kv d] twice -> [T heads*d]."""


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """What every layer of one pass shares."""

    attend: Attend
    cos: Float[Tensor, "T 1 d"]
    sin: Float[Tensor, "T 1 d"]


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
        self.register_buffer("freq", frequencies(config).to(norm.device), persistent=False)

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

        def joined(index: int, names: tuple[str, ...]) -> FloatLinear:
            prefix = f"model.layers.{index}."
            biases = [weights[f"{prefix}{n}.bias"] for n in names if f"{prefix}{n}.bias" in weights]
            weight = torch.cat([weights[f"{prefix}{n}.weight"] for n in names])
            return FloatLinear(weight, torch.cat(biases) if biases else None)

        def layer(index: int) -> Layer:
            named = {name: f"model.layers.{index}.{hf_name}.weight" for name, hf_name in NORMS.items()}
            norms = {name: weights[hf_name] for name, hf_name in named.items() if hf_name in weights}
            return Layer(config, index, {name: joined(index, n) for name, n in PRODUCTS.items()}, norms, backend)

        embedding = FloatLinear(weights["model.embed_tokens.weight"])
        head = embedding if config.tie_embeddings else FloatLinear(weights["lm_head.weight"])
        layers = [layer(i) for i in range(config.num_layers)]
        return Decoder(config, embedding, layers, weights["model.norm.weight"], head, backend)

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
        h, features = self.run(h, self.angled(self._attention(x, cache), x.positions), taps, layers)
        logits = h.new_zeros(0, self.config.vocab_size)
        if stop == last and len(x.want):
            logits = self.head(h[x.want])
        return ForwardOutput(
            logits=logits, hidden=h, logits_index=logit_places(x.want, x.size), features=features, tokens=x
        )

    def _attention(self, x: ForwardInput, cache: Cache) -> Attend:
        """The backend's attention over this pass."""
        segments, backend = cache.stage(x), self._backend
        mask = backend.attention_mask(segments, x, cache, self.dtype, self.config.sliding_window)

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return backend.attention(q, k, v, cache.store(f"k{index}"), cache.store(f"v{index}"), x, segments, mask)

        return attend

    def angled(self, attend: Attend, positions: Int[Tensor, "T"]) -> Pass:
        """What the layers of a pass over tokens at these positions share."""
        return Pass(attend, *angles(self.freq, positions, self.dtype))  # type: ignore[arg-type]

    def run(
        self, h: Float[Tensor, "T H"], ctx: Pass, taps: frozenset[int], layers: LayerPlan
    ) -> tuple[Float[Tensor, "T H"], dict[int, Float[Tensor, "T H"]]]:
        """Run the layers of a plan: the residual after them, and the tapped residuals."""
        stop = len(self.layers) if layers.stop is None else layers.stop
        features: dict[int, Tensor] = {layers.start: h} if layers.start in taps else {}
        together = {r.start: r for r in layers.together}
        at = layers.start
        while at < stop:
            group = together.get(at, range(at, at + 1))
            h = self._run(group, h, ctx, layers)
            at = group.stop
            if at in taps:
                features[at] = h
        if FINAL in taps:
            features[FINAL] = self._final(h)
        return h, features

    def _run(self, group: range, h: Tensor, ctx: Pass, plan: LayerPlan) -> Tensor:
        """Layers whose attentions read the same input (usually one), then their MLPs one after another."""
        mixed = {i: self._layer(i).attend(h, ctx) for i in group if i not in plan.skip_attention}
        for i in group:
            h = h + mixed[i] if i in mixed else h
            h = h if i in plan.skip_mlp else h + self._layer(i).mlp(h)
        return h

    def _layer(self, index: int) -> Layer:
        layer = self.layers[index]
        assert isinstance(layer, Layer)
        return layer

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        return self.embedding.take(ids)

    def head(
        self, hidden: Float[Tensor, "*S H"], *, ids: Int[Tensor, "W"] | None = None, norm: bool = True
    ) -> Float[Tensor, "*S W"]:
        """Logits of all tokens, or only those of the LM-head rows `ids`."""
        hidden = self._final(hidden) if norm else hidden
        return self.lm_head(hidden) if ids is None else self.lm_head.rows(hidden, ids)

    def _final(self, h: Tensor) -> Tensor:
        return F.rms_norm(h, (self.config.hidden_size,), self.norm, self.config.rms_eps)


def _frozen(x: Tensor | None) -> nn.Parameter | None:
    return None if x is None else nn.Parameter(x, requires_grad=False)

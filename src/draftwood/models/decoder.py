"""One decoder for the Llama, Qwen2, Qwen3 and Mistral families.

A pass may tap any layer, run a part of the layers from handed-in hidden states, leave out attention or MLP sub-layers,
and ask for a few rows of the LM head. How a product really runs is the lane's business.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.config import ModelConfig
from draftwood.core.passes import ALL, FINAL, LayerPlan, RowSpec, Seen, Segment, Tokens, logit_places
from draftwood.core.protocols import Cache
from draftwood.models.attention import BACKENDS, Mask, visible_masks
from draftwood.models.lanes.reference import ReferenceLinear
from draftwood.models.rope import angles, frequencies, rotate


class Layer(nn.Module):
    """Attention and gated MLP of one layer. q, k and v are one product, gate and up another."""

    def __init__(self, config: ModelConfig, index: int, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config, self.index = config, index

        def get(name: str) -> Tensor | None:
            return weights.get(f"model.layers.{index}.{name}")

        def joined(*names: str) -> ReferenceLinear:
            weight = torch.cat([weights[f"model.layers.{index}.{n}.weight"] for n in names])
            biases = [b for n in names if (b := get(f"{n}.bias")) is not None]
            return ReferenceLinear(weight, torch.cat(biases) if biases else None)

        self.qkv = joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.out = joined("self_attn.o_proj")
        self.gate_up = joined("mlp.gate_proj", "mlp.up_proj")
        self.down = joined("mlp.down_proj")
        self.attention_norm = _frozen(weights[f"model.layers.{index}.input_layernorm.weight"])
        self.mlp_norm = _frozen(weights[f"model.layers.{index}.post_attention_layernorm.weight"])
        self.q_norm = _frozen(get("self_attn.q_norm.weight"))
        self.k_norm = _frozen(get("self_attn.k_norm.weight"))

    def attend(self, h: Float[Tensor, "T H"], ctx: "_Pass") -> Float[Tensor, "T H"]:
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
        keys, values = ctx.cache.store(f"k{self.index}"), ctx.cache.store(f"v{self.index}")
        mixed = ctx.attention(
            qk[:, : c.num_heads], qk[:, c.num_heads :], v, keys, values, ctx.x, ctx.segments, ctx.masks
        )
        return self.out(mixed)

    def mlp(self, h: Float[Tensor, "T H"]) -> Float[Tensor, "T H"]:
        """What the MLP adds to the residual."""
        x = F.rms_norm(h, (self.config.hidden_size,), self.mlp_norm, self.config.rms_eps)
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class _Pass:
    """What every layer of one pass shares."""

    def __init__(
        self, x: Tokens, cache: Cache, segments: list[Segment], masks: list[Mask], cos: Tensor, sin: Tensor
    ) -> None:
        self.x, self.cache, self.segments, self.masks = x, cache, segments, masks
        self.cos, self.sin = cos, sin
        self.attention = BACKENDS["torch"]


class Decoder(nn.Module):
    """A whole model: embedding, layers, final norm, LM head."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        embedding = weights["model.embed_tokens.weight"]
        self.embedding = _frozen(embedding)
        self.layers = nn.ModuleList(Layer(config, i, weights) for i in range(config.num_layers))
        self.norm = _frozen(weights["model.norm.weight"])
        self.lm_head = ReferenceLinear(embedding if config.tie_embeddings else weights["lm_head.weight"])
        self.register_buffer("freq", frequencies(config).to(embedding.device), persistent=False)

    @classmethod
    def from_tensors(
        cls,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> "Decoder":
        """From tensors under their Hugging Face names; the loader has checked names and shapes."""
        return cls(config, {name: t.to(device=device, dtype=dtype) for name, t in tensors.items()})

    @property
    def vocab(self) -> int:
        return self.config.vocab_size

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def max_positions(self) -> int:
        return self.config.max_positions

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype  # type: ignore[union-attr]

    @property
    def device(self) -> torch.device:
        return self.embedding.device  # type: ignore[union-attr]

    @property
    def row_specs(self) -> tuple[RowSpec, ...]:
        c = self.config
        return tuple(
            RowSpec(f"{kind}{i}", c.num_kv_heads, c.head_dim, self.dtype)
            for i in range(self.num_layers)
            for kind in "kv"
        )

    def first_layers(self, count: int) -> "Decoder":
        """A shallow model that shares this one's weights: the first layers, then the same norm and head."""
        cut = Decoder.__new__(Decoder)
        nn.Module.__init__(cut)
        cut.config, cut.embedding, cut.norm, cut.lm_head = self.config, self.embedding, self.norm, self.lm_head
        cut.layers = nn.ModuleList(list(self.layers)[:count])
        cut.register_buffer("freq", self.get_buffer("freq"), persistent=False)
        return cut

    @torch.inference_mode()
    def forward(self, x: Tokens, cache: Cache, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL) -> Seen:
        """One pass over T tokens; logits only where wanted, and only when the last layer is reached."""
        stop = self.num_layers if layers.stop is None else layers.stop
        h = self.embed(x.ids) if x.hidden is None else x.hidden
        segments = cache.stage(x)
        masks = visible_masks(segments, x, self.dtype, self.config.sliding_window)
        cos, sin = angles(self.freq, x.positions, self.dtype)  # type: ignore[arg-type]
        ctx = _Pass(x, cache, segments, masks, cos, sin)
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
        logits = h.new_zeros(0, self.vocab)
        if stop == self.num_layers and len(x.want):
            logits = self.head(h[x.want])
        return Seen(logits=logits, hidden=h, at=logit_places(x.want, x.size), features=features, tokens=x)

    def _run(self, group: range, h: Tensor, ctx: _Pass, plan: LayerPlan) -> Tensor:
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
        return F.embedding(ids, self.embedding)  # type: ignore[arg-type]

    def head(
        self, hidden: Float[Tensor, "*S H"], *, ids: Int[Tensor, "W"] | None = None, norm: bool = True
    ) -> Float[Tensor, "*S W"]:
        """Logits, or only the rows `ids` of the LM head."""
        hidden = self._final(hidden) if norm else hidden
        return self.lm_head(hidden) if ids is None else self.lm_head.rows(hidden, ids)

    def _final(self, h: Tensor) -> Tensor:
        return F.rms_norm(h, (self.config.hidden_size,), self.norm, self.config.rms_eps)


def _frozen(x: Tensor | None) -> nn.Parameter | None:
    return None if x is None else nn.Parameter(x, requires_grad=False)

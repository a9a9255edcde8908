"""Attentions of consecutive layers that read the same input, in the steps of one: a batched product makes queries, keys and
values of all layers, their heads attend together, and a second batched product makes the outputs.

    h [T, H]   norms [g, T, H]   q, k, v [g, T, heads, d]   heads [g, T, heads*d]   added to the residual [g, T, H]
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from draftwood.core.forward import ForwardInput, Segment
from draftwood.models.attention import Mask
from draftwood.models.rope import rotate
from draftwood.models.stacked_attention import Stacked

if TYPE_CHECKING:
    from draftwood.models.decoder import Layer

GroupAttend = Callable[[range, Tensor, Tensor, Tensor], Tensor]
"""(layers, q, k, v) -> output of their heads, after k, v are written: [g T heads d], [g T kv d] twice -> [g T heads*d]."""


class StackedLinear:
    """Linear layers of one shape, each over its own input, as one batched product. All have a bias, or none."""

    def __init__(self, weights: Sequence[Float[Tensor, "out in"]], biases: Sequence[Float[Tensor, "out"]]) -> None:
        self.weight = torch.stack(list(weights))
        self.bias = torch.stack(list(biases))[:, None] if biases else None

    def __call__(self, x: Float[Tensor, "g T in"]) -> Float[Tensor, "g T out"]:
        weight = self.weight.transpose(1, 2)
        return torch.bmm(x, weight) if self.bias is None else torch.baddbmm(self.bias, x, weight)


class LayerGroup:
    """Consecutive layers of one shape. Made once, so weights that change later are not followed."""

    def __init__(self, layers: Sequence["Layer"], qkv: StackedLinear, out: StackedLinear) -> None:
        self.config, self.layers = layers[0].config, range(layers[0].index, layers[-1].index + 1)
        # A second copy of these weights: 2 (heads + kv) d H numbers for each layer.
        self.qkv, self.out = qkv, out
        norms = [each.attention_norm for each in layers if each.attention_norm is not None]
        self.norm = torch.stack([*norms])[:, None]  # [g, 1, H]
        self.qk_norm = None
        if layers[0].q_norm is not None:
            self.qk_norm = torch.stack([_head_norms(each) for each in layers])[:, None]  # [g, 1, heads + kv, d]

    def attend(
        self, h: Float[Tensor, "T H"], attend: GroupAttend, cos: Float[Tensor, "T 1 d"], sin: Float[Tensor, "T 1 d"]
    ) -> Float[Tensor, "g T H"]:
        """What each layer's attention adds to the residual."""
        c, count = self.config, len(self.layers)
        x = F.rms_norm(h, (c.hidden_size,), None, c.rms_eps) * self.norm
        qkv = self.qkv(x).view(count, len(h), c.num_heads + 2 * c.num_kv_heads, c.head_dim)
        qk, v = qkv[:, :, : c.num_heads + c.num_kv_heads], qkv[:, :, c.num_heads + c.num_kv_heads :]
        if self.qk_norm is not None:
            qk = F.rms_norm(qk, (c.head_dim,), None, c.rms_eps) * self.qk_norm
        qk = rotate(qk, cos, sin)
        return self.out(attend(self.layers, qk[:, :, : c.num_heads], qk[:, :, c.num_heads :], v))


def _head_norms(layer: "Layer") -> Float[Tensor, "heads d"]:
    """The norm of every head of queries and keys."""
    assert layer.q_norm is not None and layer.k_norm is not None
    c = layer.config
    return torch.cat([layer.q_norm.expand(c.num_heads, -1), layer.k_norm.expand(c.num_kv_heads, -1)])


def float_group_attention(
    q: Float[Tensor, "g T heads d"],
    k: Float[Tensor, "g T kv d"],
    v: Float[Tensor, "g T kv d"],
    pairs: Float[Tensor, "g 2 slots kv capacity d"],
    x: ForwardInput,
    segments: Sequence[Segment],
    attention_mask: Sequence[Mask] | Stacked,
) -> Float[Tensor, "g T heads*d"]:
    """`float_attention` of several layers, with one call for all of them where that has one for each."""
    new = torch.stack([k, v], dim=1)  # [g, 2, T, kv, d]
    if isinstance(attention_mask, Stacked):
        return _all_slots(q, new, pairs, attention_mask)
    count, total, heads, width = q.shape
    kv = k.shape[2]
    out = q.new_zeros(count, total, kv, heads // kv, width)
    for s, mask in zip(segments, attention_mask, strict=True):
        part, tokens = slice(s.start, s.stop), s.stop - s.start
        own, size = pairs[:, :, s.slot], s.committed + s.staged
        if s.dense:
            first = s.committed + s.first_entry
            own[..., first : first + tokens, :] = new[:, :, part].transpose(2, 3)
        else:
            own[..., s.committed + x.entries[part], :] = new[:, :, part].transpose(2, 3)
        keys, values = own[..., :size, :].unbind(1)
        query = q[:, part].unflatten(2, (kv, -1)).permute(0, 2, 3, 1, 4).reshape(count, kv, -1, width)
        query_mask = None if mask is None else mask.repeat(heads // kv, 1)
        mixed = F.scaled_dot_product_attention(query, keys, values, query_mask)
        out[:, part] = mixed.view(count, kv, -1, tokens, width).permute(0, 3, 1, 2, 4)
    return out.flatten(2)


def _all_slots(
    q: Float[Tensor, "g T heads d"],
    new: Float[Tensor, "g 2 T kv d"],
    pairs: Float[Tensor, "g 2 slots kv capacity d"],
    s: Stacked,
) -> Float[Tensor, "g T heads*d"]:
    """`stacked_attention` of several layers: lines and heads are one dimension, because a call has only one beside that of
    the layers."""
    count, total, heads, d = q.shape
    kv = new.shape[3]
    lines, _, width, context = s.mask.shape
    pairs[:, :, s.slots, :, s.entries] = new[:, :, s.tokens].permute(2, 0, 1, 3, 4)
    query = q.new_zeros(count, lines * width, heads, d).index_copy_(1, s.at, q[:, s.tokens])
    query = query.view(count, lines, width, kv, -1, d).permute(0, 1, 3, 4, 2, 5).reshape(count, lines * kv, -1, d)
    keys, values = pairs[:, :, s.lines, :, :context].flatten(2, 3).unbind(1)
    mask = s.mask.repeat(1, kv, heads // kv, 1).flatten(0, 1)
    mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    mixed = (
        mixed.view(count, lines, kv, -1, width, d).permute(0, 1, 4, 2, 3, 5).reshape(count, lines * width, heads * d)
    )
    return q.new_zeros(count, total, heads * d).index_copy_(1, s.tokens, mixed[:, s.at])

"""Attention of many slots in one call: segments as lines of a rectangle over a common stretch of KV entries.

    slot 3   a .   | committed . . . . | staged | masked ...        slots 3 to 6, two tokens wide,
    slot 4   . .   | (not in the pass: computed, discarded)         over `context` KV entries
    slot 5   b c   | committed | staged | masked ...
    slot 6   d .   | committed . . | staged | masked ...

On a CPU a call costs as much as a few hundred KV entries, so many short segments gain from sharing one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import ForwardInput, Segment
from draftwood.core.host import put
from draftwood.core.protocols import Cache
from draftwood.models.attention import Mask, Mix, capped_mix, torch_attention, visible_masks

FEW, RAGGED = 8, 2  # with fewer segments, or more padding than this, each segment attends alone
MASK_NUMBERS = 2**22  # larger masks take longer than the calls they save


@dataclass(frozen=True, slots=True, eq=False)
class Stacked:
    """A pass as a rectangle: the slots of `lines`, each as wide as the longest segment."""

    lines: slice  # slots of the stores, read in place
    tokens: Int[Tensor, "n"]  # places in the pass that are no padding
    at: Int[Tensor, "n"]  # where in the rectangle they stand
    slots: Int[Tensor, "n"]
    entries: Int[Tensor, "n"]  # of the stores, written by the tokens
    mask: Float[Tensor, "S 1 width context"]


def stacked(segments: Sequence[Segment], x: ForwardInput, dtype: torch.dtype, window: int | None) -> Stacked:
    """How a pass is stacked, made once and used by every layer."""
    slots = [s.slot for s in segments]
    first, last = min(slots), max(slots)
    width, context = max(s.stop - s.start for s in segments), max(s.committed + s.staged for s in segments)
    mask = torch.full((last - first + 1, width, context), -torch.inf, dtype=dtype)
    mask[..., 0] = 0  # the softmax of padding without any entry would be NaN
    for s, own in zip(segments, visible_masks(segments, x, dtype, window), strict=True):
        mask[s.slot - first, : s.stop - s.start, : s.committed + s.staged] = 0 if own is None else own
    columns = [
        (place, (s.slot - first) * width + place - s.start, s.committed)
        for s in segments
        for place in range(s.start, s.stop)
    ]
    tokens, at, committed = put(list(zip(*columns, strict=True)), x.ids.device).unbind(0)
    return Stacked(
        slice(first, last + 1),
        tokens,
        at,
        x.slots[tokens],
        committed + x.entries[tokens],
        mask[:, None].to(x.ids.device),
    )


def stacked_attention(
    q: Float[Tensor, "T heads d"],
    k: Float[Tensor, "T kv d"],
    v: Float[Tensor, "T kv d"],
    keys: Float[Tensor, "slots kv capacity d"],
    values: Float[Tensor, "slots kv capacity d"],
    s: Stacked,
    mix: Mix = F.scaled_dot_product_attention,
) -> Float[Tensor, "T heads*d"]:
    """Write all new entries, then attend in one call. Entries behind a slot's own are masked, not left out, so they must
    be finite."""
    total, heads, d = q.shape
    kv = k.shape[1]
    group = heads // kv
    count, _, width, context = s.mask.shape
    keys[s.slots, :, s.entries] = k[s.tokens]
    values[s.slots, :, s.entries] = v[s.tokens]
    query = q.new_zeros(count * width, heads, d).index_copy_(0, s.at, q[s.tokens])
    query = query.view(count, width, kv, group, d).permute(0, 2, 3, 1, 4).reshape(count, kv, group * width, d)
    mask = s.mask if width == 1 else s.mask.repeat(1, 1, group, 1)
    mixed = mix(query, keys[s.lines, :, :context], values[s.lines, :, :context], mask)
    mixed = mixed.view(count, kv, group, width, d).permute(0, 3, 1, 2, 4).reshape(count * width, heads * d)
    return q.new_zeros(total, heads * d).index_copy_(0, s.tokens, mixed[s.at])


def stacking_pays(segments: Sequence[Segment]) -> bool:
    """Whether a pass is stacked: many segments of similar size, in slots that lie close together."""
    if len(segments) < FEW:
        return False
    slots = [s.slot for s in segments]
    sizes = [(s.stop - s.start, s.committed + s.staged) for s in segments]
    padded = (max(slots) - min(slots) + 1) * max(t for t, _ in sizes) * max(c for _, c in sizes)
    return padded <= min(MASK_NUMBERS, RAGGED * sum(t * c for t, c in sizes))


def float_attention_mask(
    segments: Sequence[Segment], x: ForwardInput, cache: Cache, dtype: torch.dtype, window: int | None
) -> Sequence[Mask] | Stacked:
    """The attention mask for `float_attention`, made once per pass and used by every layer."""
    if not stacking_pays(segments):
        return visible_masks(segments, x, dtype, window)
    cache.wipe()
    return stacked(segments, x, dtype, window)


def float_attention(
    q: Float[Tensor, "T heads d"],
    k: Float[Tensor, "T kv d"],
    v: Float[Tensor, "T kv d"],
    keys: Float[Tensor, "slots kv capacity d"],
    values: Float[Tensor, "slots kv capacity d"],
    x: ForwardInput,
    segments: Sequence[Segment],
    attention_mask: Sequence[Mask] | Stacked,
    cap: float | None = None,
) -> Float[Tensor, "T heads*d"]:
    """All segments together or one at a time, as `float_attention_mask` chose. `cap`: see `capped_mix`."""
    mix = F.scaled_dot_product_attention if cap is None else capped_mix(cap)
    if isinstance(attention_mask, Stacked):
        return stacked_attention(q, k, v, keys, values, attention_mask, mix)
    return torch_attention(q, k, v, keys, values, x, segments, attention_mask, mix)

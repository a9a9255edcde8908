"""Masked (tree) attention: a token attends to its slot's committed KV entries and to the staged ones on its own path.

The query heads of a group are stacked along the query axis, so keys and values are read once per key/value head and never
repeated.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from draftwood.core.forward import ForwardInput, Segment

Mask = Float[Tensor, "t context"] | None
Mix = Callable[[Tensor, Tensor, Tensor, Mask], Tensor]
"""(q, k, v, mask) -> softmax(q k^T / sqrt(d) + mask) v of one segment: [1 kv n d], [1 kv context d] twice -> [1 kv n d]."""


def capped_mix(cap: float) -> Mix:
    """Attention whose scores are bent to stay below `cap` before the mask is added."""

    def mix(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        score = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        score = (score / cap).tanh() * cap
        score = score if mask is None else score + mask
        exact = torch.promote_types(score.dtype, torch.float32)
        return torch.softmax(score, dim=-1, dtype=exact).to(q.dtype) @ v

    return mix


def visible_masks(segments: Sequence[Segment], x: ForwardInput, dtype: torch.dtype, window: int | None) -> list[Mask]:
    """One additive mask per segment, made once per pass and used by every layer. None: nothing is masked."""
    masks: list[Mask] = []
    for s in segments:
        size = s.committed + s.staged
        narrow = window is not None and size > window
        if s.visible is None and not narrow:
            masks.append(None)
            continue
        tokens = s.stop - s.start
        open_ = torch.ones(tokens, size, dtype=torch.bool)
        if s.visible is not None:
            open_[:, s.committed :] = s.visible
        if narrow:
            _close_window(open_, s, x, window or 0)
        mask = torch.zeros(tokens, size, dtype=dtype).masked_fill_(~open_, -torch.inf)
        masks.append(mask.to(x.ids.device))
    return masks


def _close_window(open_: Tensor, s: Segment, x: ForwardInput, window: int) -> None:
    """Mask what lies before the window: a token at position t attends to positions t - window + 1 .. t.

    The position of a committed entry is its index. The distance to a visible staged entry is the number of visible
    staged entries behind it."""
    position = x.positions[s.start : s.stop].cpu()
    entry = torch.arange(s.committed)
    open_[:, : s.committed] &= entry > position[:, None] - window
    staged = open_[:, s.committed :]
    behind = staged.long().flip(1).cumsum(1).flip(1) - 1
    open_[:, s.committed :] = staged & (behind < window)


def write_entries(
    store: Float[Tensor, "slots kv capacity d"], new: Float[Tensor, "T kv d"], s: Segment, x: ForwardInput
) -> None:
    """Write the new entries of one segment to their places in the cache."""
    new = new[s.start : s.stop].transpose(0, 1)
    if s.dense:
        first = s.committed + s.first_entry
        store[s.slot, :, first : first + s.stop - s.start] = new
    else:
        store[s.slot, :, s.committed + x.entries[s.start : s.stop]] = new


def torch_attention(
    q: Float[Tensor, "T heads d"],
    k: Float[Tensor, "T kv d"],
    v: Float[Tensor, "T kv d"],
    keys: Float[Tensor, "slots kv capacity d"],
    values: Float[Tensor, "slots kv capacity d"],
    x: ForwardInput,
    segments: Sequence[Segment],
    masks: Sequence[Mask],
    mix: Mix = F.scaled_dot_product_attention,
) -> Float[Tensor, "T heads*d"]:
    """Write the new entries, then attend, one segment at a time."""
    total, heads, width = q.shape
    kv = k.shape[1]
    group = heads // kv
    out = q.new_zeros(total, kv, group, width)
    for s, mask in zip(segments, masks, strict=True):
        part = slice(s.start, s.stop)
        tokens = s.stop - s.start
        write_entries(keys, k, s, x)
        write_entries(values, v, s, x)
        size = s.committed + s.staged
        query = q[part].view(tokens, kv, group, width).permute(1, 2, 0, 3).reshape(1, kv, group * tokens, width)
        query_mask = None if mask is None else mask.repeat(group, 1)
        own = slice(s.slot, s.slot + 1)
        mixed = mix(query, keys[own, :, :size], values[own, :, :size], query_mask)
        out[part] = mixed.view(kv, group, tokens, width).permute(2, 0, 1, 3)
    return out.view(total, heads * width)

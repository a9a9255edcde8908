"""Attention of many slots in one call: segments stacked into a rectangle over a common stretch of KV entries.

    slot 3   a .   | committed . . . . | staged | masked ...        one Stack: slots 3 to 6, two tokens wide,
    slot 4   . .   | (not in the pass: computed, discarded)         over `context` KV entries
    slot 5   b c   | committed | staged | masked ...
    slot 6   d .   | committed . . | staged | masked ...

On an accelerator a call costs more than the arithmetic of a short segment, so many slots share one call.
Padding stays bounded: only segments of similar width and similar context are stacked, and the size of a mask is limited.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import ForwardInput, Segment
from draftwood.core.protocols import Cache
from draftwood.models.attention import Mask, torch_attention, visible_masks

CONTEXT_STEP = 64  # contexts are multiples of this: few shapes, and aligned masks
SHORT_CONTEXT = 1024  # shorter contexts are stacked together; above, contexts within a factor of four are
SPARSE = 2  # up to this many slots of a range per slot in use, idle slots are read too; beyond, a copy is cheaper
MASK_NUMBERS = 2**24  # of one stack
FEW_QUERIES = 16  # of a head and slot, up to which plain products beat fused kernels on an accelerator
FEW, RAGGED = 8, 2  # on a CPU: with fewer segments, or more padding than this, each segment attends alone


@dataclass(slots=True, eq=False)
class Stack:
    """`count` slots of the stores, `width` tokens in each, over `context` KV entries."""

    slots: slice | Int[Tensor, "S"]  # a range of slots is read in place, others are copied
    count: int
    width: int
    context: int
    tokens: Int[Tensor, "n"] | None  # places in the pass; None: all of it
    at: Int[Tensor, "n"] | None  # where in the rectangle they stand; None: one after another
    mask: Float[Tensor, "S 1 width context"]
    _folded: Tensor | None = None

    def spread(self, flat: Float[Tensor, "T heads d"]) -> Float[Tensor, "places heads d"]:
        """The tokens of the pass as a rectangle."""
        part = flat if self.tokens is None else flat[self.tokens]
        if self.at is None:
            return part
        return flat.new_zeros(self.count * self.width, *flat.shape[1:]).index_copy_(0, self.at, part)

    def collect(self, padded: Float[Tensor, "places H"], out: Float[Tensor, "T H"]) -> None:
        """Back from the rectangle into the pass."""
        part = padded if self.at is None else padded[self.at]
        if self.tokens is None:
            out.copy_(part)
        else:
            out.index_copy_(0, self.tokens, part)

    def folded(self, group: int) -> Float[Tensor, "S 1 queries context"]:
        """The mask for queries of `group` heads per key/value head; made by the first layer, used by all."""
        if self._folded is None:
            self._folded = self.mask if self.width == 1 else self.mask.repeat(1, 1, group, 1)
        return self._folded

    def read(self, store: Float[Tensor, "slots kv capacity d"]) -> Float[Tensor, "S kv context d"]:
        return store[:, :, : self.context][self.slots]


@dataclass(frozen=True, slots=True, eq=False)
class Stacked:
    """A whole pass: where its new entries are written, and its stacks."""

    tokens: Int[Tensor, "n"] | None  # places in the pass that are no padding; None: all of it
    slots: Int[Tensor, "n"]
    entries: Int[Tensor, "n"]  # of the stores
    stacks: tuple[Stack, ...]

    def write(self, store: Float[Tensor, "slots kv capacity d"], new: Float[Tensor, "T kv d"]) -> None:
        store[self.slots, :, self.entries] = new if self.tokens is None else new[self.tokens]


def stacked(
    segments: Sequence[Segment], x: ForwardInput, dtype: torch.dtype, window: int | None, capacity: int
) -> Stacked:
    """How a pass is stacked, made once and used by every layer. `capacity`: entries of a slot in the stores."""
    device = x.ids.device
    columns = [(s.slot, s.start, s.stop - s.start, s.committed, s.staged) for s in segments]
    table = np.array(columns, dtype=np.int64).reshape(-1, 5)
    _, start, size, committed, _ = table.T
    tokens = _runs(start, size)
    whole = len(tokens) == x.size
    places = _put(tokens, device)
    stacks = [_stack([segments[i] for i in part], table[part], x, dtype, window, capacity) for part in _groups(table)]
    return Stacked(
        tokens=None if whole else places,
        slots=x.slots[places],
        entries=_put(np.repeat(committed, size), device) + x.entries[places],
        stacks=tuple(stacks),
    )


def _groups(table: np.ndarray) -> list[np.ndarray]:
    """Segments to stack, each group ascending in its slots. Similar widths (powers of two) and similar contexts form a
    group, so that a prompt chunk does not pad single decoding tokens, nor one long sequence the short ones."""
    slot, _, size, committed, staged = table.T
    width = np.ceil(np.log2(size)).astype(np.int64)
    context = np.ceil(np.log2(np.maximum((committed + staged) / SHORT_CONTEXT, 1)) / 2).astype(np.int64)
    kind = width * 64 + context
    groups: list[np.ndarray] = []
    for each in np.unique(kind):
        part = np.flatnonzero(kind == each)
        part = part[np.argsort(slot[part], kind="stable")]
        numbers = SPARSE * int(size[part].max()) * int((committed + staged)[part].max())
        most = max(1, MASK_NUMBERS // numbers)
        groups += [part[i : i + most] for i in range(0, len(part), most)]
    return groups


def _stack(
    segments: list[Segment], table: np.ndarray, x: ForwardInput, dtype: torch.dtype, window: int | None, capacity: int
) -> Stack:
    device = x.ids.device
    slot, start, size, committed, staged = table.T
    width = int(size.max())
    context = min(capacity, -(-int((committed + staged).max()) // CONTEXT_STEP) * CONTEXT_STEP)
    first, last = int(slot[0]), int(slot[-1])
    ranged = last - first < SPARSE * len(slot)
    line = slot - first if ranged else np.arange(len(slot))  # of each segment in the stack
    count = last - first + 1 if ranged else len(slot)

    tokens = _runs(start, size)
    at = _runs(line * width, size)
    in_order = np.array_equal(tokens, np.arange(x.size))
    whole = np.array_equal(at, np.arange(count * width))
    places = _put(tokens, device)
    open_ = _open(segments, table, width, context, x.positions, window)
    mask = torch.zeros_like(open_, dtype=dtype).masked_fill_(~open_, -torch.inf)
    if count > len(segments):  # the result of an idle slot is discarded, so its mask may be anything finite
        mask = mask.new_zeros(count, width, context).index_copy_(0, _put(line, device), mask)
    return Stack(
        slots=slice(first, last + 1) if ranged else _put(slot, device),
        count=count,
        width=width,
        context=context,
        tokens=None if in_order else places,
        at=None if whole else _put(at, device),
        mask=mask[:, None],
    )


def _open(
    segments: list[Segment],
    table: np.ndarray,
    width: int,
    context: int,
    positions: Int[Tensor, "T"],
    window: int | None,
) -> Tensor:
    """[segments, width, context]: which KV entries each token attends to."""
    device = positions.device
    _, start, size, committed, staged = table.T
    column = torch.arange(context, device=device)
    behind = column - _put(committed, device)[:, None]  # [segments, context]: staged entry, negative for committed ones
    old = (behind < 0)[:, None]
    if window is not None:
        # A token at position t attends to positions t - window + 1 .. t. Padding uses the last token's position.
        place = np.minimum(start[:, None] + np.arange(width), (start + size - 1)[:, None])
        old = old & (column > positions[_put(place, device)][..., None] - window)
    if all(s.visible is None for s in segments):  # single tokens, each of which attends to every staged entry
        return old | ((behind >= 0) & (behind < _put(staged, device)[:, None]))[:, None]
    visible = np.zeros((len(segments), width, int(staged.max())), dtype=bool)
    for line, s in enumerate(segments):
        visible[line, : size[line], : staged[line]] = True if s.visible is None else s.visible.numpy()
        visible[line, size[line] :, 0] = True  # the softmax of a padded token without any entry would be NaN
    if window is not None:
        # The distance to a visible staged entry is the number of visible staged entries behind it.
        back = np.flip(np.cumsum(np.flip(visible, 2), axis=2, dtype=np.int32), 2) - 1
        visible &= back < window
    new = _put(visible, device).gather(2, behind.clamp(0, visible.shape[2] - 1)[:, None].expand(-1, width, -1))
    return old | (new & (behind >= 0)[:, None] & (behind < visible.shape[2])[:, None])


def _runs(first: np.ndarray, size: np.ndarray) -> np.ndarray:
    """first, first + 1, ... of every run, one run after another."""
    ends = np.cumsum(size)
    return np.repeat(first - (ends - size), size) + np.arange(ends[-1] if len(ends) else 0)


def _put(x: np.ndarray, device: torch.device) -> Tensor:
    # CUDA stages unpinned memory before this returns, so the array may change or be freed at once.
    return torch.from_numpy(np.ascontiguousarray(x)).to(device, non_blocking=True)


def stacked_attention(
    q: Float[Tensor, "T heads d"],
    k: Float[Tensor, "T kv d"],
    v: Float[Tensor, "T kv d"],
    keys: Float[Tensor, "slots kv capacity d"],
    values: Float[Tensor, "slots kv capacity d"],
    attention_mask: Stacked,
) -> Float[Tensor, "T heads*d"]:
    """Write all new entries, then attend, one stack at a time. Entries behind a slot's own are masked, not left out, so
    they must be finite."""
    total, heads, width = q.shape
    kv = k.shape[1]
    group = heads // kv
    attention_mask.write(keys, k)
    attention_mask.write(values, v)
    out = q.new_zeros(total, heads * width)
    for s in attention_mask.stacks:
        query = s.spread(q).view(s.count, s.width, kv, group, width).permute(0, 2, 3, 1, 4)
        query = query.reshape(s.count, kv, group * s.width, width)
        attend = (
            few_queries if query.shape[2] <= FEW_QUERIES and q.device.type != "cpu" else F.scaled_dot_product_attention
        )
        mixed = attend(query, s.read(keys), s.read(values), s.folded(group))
        mixed = mixed.view(s.count, kv, group, s.width, width).permute(0, 3, 1, 2, 4)
        s.collect(mixed.reshape(s.count * s.width, heads * width), out)
    return out


def few_queries(
    q: Float[Tensor, "S kv n d"],
    k: Float[Tensor, "S kv context d"],
    v: Float[Tensor, "S kv context d"],
    mask: Float[Tensor, "S 1 m context"],
) -> Float[Tensor, "S kv n d"]:
    """Two plain products that read every key and value once. Fused kernels are built for many queries per head: with
    three, most of a tile is empty."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + mask
    return torch.softmax(scores, dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype) @ v


def stacking_pays(segments: Sequence[Segment], device: torch.device) -> bool:
    """Whether a pass is stacked. On an accelerator always, because the number of calls dominates. On a CPU a call costs
    as much as a few hundred KV entries, so 8 or more segments of similar size gain, and few or ragged ones do not."""
    if device.type != "cpu":
        return len(segments) > 1
    if len(segments) < FEW:
        return False
    sizes = [(s.stop - s.start, s.committed + s.staged) for s in segments]
    padded = len(sizes) * max(t for t, _ in sizes) * max(c for _, c in sizes)
    return padded <= RAGGED * sum(t * c for t, c in sizes)


def float_attention_mask(
    segments: Sequence[Segment], x: ForwardInput, cache: Cache, dtype: torch.dtype, window: int | None
) -> Sequence[Mask] | Stacked:
    """The attention mask for `float_attention`, made once per pass and used by every layer."""
    if not stacking_pays(segments, x.ids.device):
        return visible_masks(segments, x, dtype, window)
    cache.wipe()
    return stacked(segments, x, dtype, window, capacity=cache.store("k0").shape[2])


def float_attention(
    q: Float[Tensor, "T heads d"],
    k: Float[Tensor, "T kv d"],
    v: Float[Tensor, "T kv d"],
    keys: Float[Tensor, "slots kv capacity d"],
    values: Float[Tensor, "slots kv capacity d"],
    x: ForwardInput,
    segments: Sequence[Segment],
    attention_mask: Sequence[Mask] | Stacked,
) -> Float[Tensor, "T heads*d"]:
    """All segments together or one at a time, as `float_attention_mask` chose."""
    if isinstance(attention_mask, Stacked):
        return stacked_attention(q, k, v, keys, values, attention_mask)
    return torch_attention(q, k, v, keys, values, x, segments, attention_mask)

"""Attention of many slots in one call: segments stacked into a rectangle over a common stretch of cache rows.

    slot 3   a .   | committed . . . . | staged | closed ...        one Stack: slots 3 to 6, two tokens wide,
    slot 4   . .   | (no part in the pass: computed, thrown away)   over `context` cache rows
    slot 5   b c   | committed | staged | closed ...
    slot 6   d .   | committed . . | staged | closed ...

A call costs an accelerator more than the arithmetic of a short segment, so a thousand slots must not be a thousand calls.
What is padded stays bounded: segments of like width and like context are stacked together, and a stack's mask is small.
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

CONTEXT_STEP = 64  # contexts are multiples of this: few shapes, and rows of a mask that are aligned
SHORT_CONTEXT = 1024  # below this, and from there in steps of four, contexts are not told apart
SPARSE = 2  # slots of a range per slot in use, up to which idle ones are read along; beyond, a copy is cheaper
MASK_NUMBERS = 2**24  # of one stack
FEW_QUERIES = 16  # of a head and slot, up to which plain products beat fused kernels on an accelerator
FEW, RAGGED = 8, 2  # on a processor: fewer segments, or more padding than this, and each attends alone


@dataclass(slots=True, eq=False)
class Stack:
    """`count` rows of the stores, `width` tokens in each, over `context` cache rows."""

    slots: slice | Int[Tensor, "S"]  # a range of slots is read in place, others are copied
    count: int
    width: int
    context: int
    tokens: Int[Tensor, "n"] | None  # places in the pass; None: all of it
    at: Int[Tensor, "n"] | None  # where in the rectangle they stand; None: one after another
    mask: Float[Tensor, "S 1 width context"]
    _folded: Tensor | None = None

    def spread(self, flat: Float[Tensor, "T heads d"]) -> Float[Tensor, "rows heads d"]:
        """The tokens of the pass as a rectangle."""
        part = flat if self.tokens is None else flat[self.tokens]
        if self.at is None:
            return part
        return flat.new_zeros(self.count * self.width, *flat.shape[1:]).index_copy_(0, self.at, part)

    def collect(self, padded: Float[Tensor, "rows H"], out: Float[Tensor, "T H"]) -> None:
        """Back from the rectangle into the pass."""
        part = padded if self.at is None else padded[self.at]
        if self.tokens is None:
            out.copy_(part)
        else:
            out.index_copy_(0, self.tokens, part)

    def folded(self, group: int) -> Float[Tensor, "S 1 rows context"]:
        """The mask of query rows that hold `group` heads each; made by the first layer, used by all."""
        if self._folded is None:
            self._folded = self.mask if self.width == 1 else self.mask.repeat(1, 1, group, 1)
        return self._folded

    def read(self, store: Float[Tensor, "slots kv capacity d"]) -> Float[Tensor, "S kv context d"]:
        return store[:, :, : self.context][self.slots]


@dataclass(frozen=True, slots=True, eq=False)
class Stacked:
    """A whole pass: where its new rows go, and its stacks."""

    tokens: Int[Tensor, "n"] | None  # places in the pass that are no padding; None: all of it
    slots: Int[Tensor, "n"]
    rows: Int[Tensor, "n"]  # of the stores
    stacks: tuple[Stack, ...]

    def write(self, store: Float[Tensor, "slots kv capacity d"], new: Float[Tensor, "T kv d"]) -> None:
        store[self.slots, :, self.rows] = new if self.tokens is None else new[self.tokens]


def stacked(
    segments: Sequence[Segment], x: ForwardInput, dtype: torch.dtype, window: int | None, capacity: int
) -> Stacked:
    """How a pass is stacked, made once and used by every layer. `capacity`: rows of a slot in the stores."""
    device = x.ids.device
    columns = [(s.slot, s.start, s.stop - s.start, s.committed, s.staged) for s in segments]
    table = np.array(columns, dtype=np.int64).reshape(-1, 5)
    _, start, size, committed, _ = table.T
    tokens = _runs(start, size)
    whole = len(tokens) == x.size
    places = _put(tokens, device)
    stacks = [_stack(segments, table[part], part, x, dtype, window, capacity) for part in _groups(table)]
    return Stacked(
        tokens=None if whole else places,
        slots=x.slots[places],
        rows=_put(np.repeat(committed, size), device) + x.entries[places],
        stacks=tuple(stacks),
    )


def _groups(table: np.ndarray) -> list[np.ndarray]:
    """Segments to stack, each group ascending in its slots: like widths (powers of two) and like contexts together, so
    that a prompt chunk never widens a decoding row, nor one long text all the short ones."""
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
    segments: Sequence[Segment],
    table: np.ndarray,
    part: np.ndarray,
    x: ForwardInput,
    dtype: torch.dtype,
    window: int | None,
    capacity: int,
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
    open_ = _open(segments, table, part, width, context, x.positions, window, device)
    mask = torch.zeros_like(open_, dtype=dtype).masked_fill_(~open_, -torch.inf)
    if count > len(part):  # Whatever an idle slot would see, nobody reads it.
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
    segments: Sequence[Segment],
    table: np.ndarray,
    part: np.ndarray,
    width: int,
    context: int,
    positions: Int[Tensor, "T"],
    window: int | None,
    device: torch.device,
) -> Tensor:
    """[segments, width, context]: which cache rows each token sees."""
    _, start, size, committed, staged = table.T
    column = torch.arange(context, device=device)
    behind = column - _put(committed, device)[:, None]  # [segments, context]: staged row, negative for committed ones
    old = (behind < 0)[:, None]
    if window is not None:
        # A token at position t sees positions t - window + 1 .. t. Padded tokens take the last token's place.
        place = np.minimum(start[:, None] + np.arange(width), (start + size - 1)[:, None])
        old = old & (column > positions[_put(place, device)][..., None] - window)
    if all(segments[i].visible is None for i in part):  # single tokens, each of which sees every staged row
        return old | ((behind >= 0) & (behind < _put(staged, device)[:, None]))[:, None]
    sees = np.zeros((len(part), width, int(staged.max())), dtype=bool)
    for line, i in enumerate(part):
        visible = segments[i].visible
        sees[line, : size[line], : staged[line]] = True if visible is None else visible.numpy()
        sees[line, size[line] :, 0] = True  # a padded token that sees nothing would not be a number
    if window is not None:
        # A staged row that a token sees is as far back as there are seen staged rows behind it.
        back = np.flip(np.cumsum(np.flip(sees, 2), axis=2, dtype=np.int32), 2) - 1
        sees &= back < window
    new = _put(sees, device).gather(2, behind.clamp(0, sees.shape[2] - 1)[:, None].expand(-1, width, -1))
    return old | (new & (behind >= 0)[:, None] & (behind < sees.shape[2])[:, None])


def _runs(first: np.ndarray, size: np.ndarray) -> np.ndarray:
    """first, first + 1, ... of every run, one run after another."""
    ends = np.cumsum(size)
    return np.repeat(first - (ends - size), size) + np.arange(ends[-1] if len(ends) else 0)


def _put(x: np.ndarray, device: torch.device) -> Tensor:
    # Not waited for: the numbers are copied away before this returns, and nothing else may change them.
    return torch.from_numpy(np.ascontiguousarray(x)).to(device, non_blocking=True)


def stacked_attention(
    q: Float[Tensor, "T heads d"],
    k: Float[Tensor, "T kv d"],
    v: Float[Tensor, "T kv d"],
    keys: Float[Tensor, "slots kv capacity d"],
    values: Float[Tensor, "slots kv capacity d"],
    attention_mask: Stacked,
) -> Float[Tensor, "T heads*d"]:
    """Write all new rows, then attend, one stack at a time. What stands behind a slot's rows is masked, not left out: it
    must be numbers."""
    total, heads, width = q.shape
    kv = k.shape[1]
    group = heads // kv
    attention_mask.write(keys, k)
    attention_mask.write(values, v)
    out = q.new_zeros(total, heads * width)
    for s in attention_mask.stacks:
        query = s.spread(q).view(s.count, s.width, kv, group, width).permute(0, 2, 3, 1, 4)
        query = query.reshape(s.count, kv, group * s.width, width)
        attend = few_queries if query.shape[2] <= FEW_QUERIES and q.device.type != "cpu" else _many_queries
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
    """Two plain products that read every key and value once. Fused kernels are made for many queries a head: with three
    of them most of their tiles are empty."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + mask
    return torch.softmax(scores, dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype) @ v


def _many_queries(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def stacking_pays(segments: Sequence[Segment], device: torch.device) -> bool:
    """Whether a pass is stacked. On an accelerator always: calls are what costs there. On a processor a call costs as
    much as a few hundred cache rows, so many segments of about one size gain (2 to 6 times less, 8 to 128 of them), and
    few or ragged ones do not."""
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
    """What `float_attention` needs to know of a pass, made once and used by every layer."""
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
    """Together or one segment at a time, as `float_attention_mask` chose."""
    if isinstance(attention_mask, Stacked):
        return stacked_attention(q, k, v, keys, values, attention_mask)
    return torch_attention(q, k, v, keys, values, x, segments, attention_mask)

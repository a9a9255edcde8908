"""Passes as rectangles of a few fixed sizes, so that each size can be captured once and replayed.

    spans           3 sequences of 5, 5 and 4 tokens, contexts up to 700
    rectangle       4 lines of 8 tokens over 1,024 entries; padding writes to entries that no text reads

Lengths, slots and parents are read from device memory, so one captured graph serves every text that fits its size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.cache.dense import slot_runs
from draftwood.cache.device import DeviceCache
from draftwood.core.forward import ForwardInput, HostInput, Span
from draftwood.core.host import put
from draftwood.errors import EngineError
from draftwood.models.attention import capped_mix

WIDEST = (
    64  # tokens of a line in a captured pass; longer ones are prompts, whose arithmetic takes longer than the launches
)
LEAST_CONTEXT = 256
MOST_NODES = 1024  # of a tree in one slot
MOST_MASKED = 2**24  # numbers of a mask for every head


@dataclass(frozen=True, slots=True)
class Size:
    """All numbers that the shapes of a pass depend on."""

    lines: int
    width: int
    context: int  # entries of a slot that attention reads
    nodes: int  # staged entries behind the known text
    slot: int  # the first of consecutive slots, whose entries are read in place; -1: others, whose entries are copied

    @staticmethod
    def of(spans: Sequence[Span], room: int, more: int = 0, coarse: bool = False) -> "Size":
        """The smallest of the fixed sizes that holds them, and `more` entries behind them. `coarse`: contexts and trees of
        few sizes, for kernels that leave out what is not there."""
        width = max(s.stop - s.start for s in spans)
        width = _rounded(width) if width <= WIDEST else -(-width // WIDEST) * WIDEST
        longest = more + max(s.done + s.first + s.stop - s.start for s in spans)
        nodes = max(s.first + s.stop - s.start - s.line for s in spans)
        if nodes > MOST_NODES:
            raise EngineError(
                f"a tree of {nodes} staged nodes in one slot, at most {MOST_NODES} fit\nhint: fewer nodes"
            )
        lines, first = _rounded(len(spans)), spans[0].slot
        if coarse:
            return Size(
                lines, width, min(max(2 * LEAST_CONTEXT, _rounded(longest)), room), max(64, _rounded(nodes)), -1
            )
        step = max(LEAST_CONTEXT, _rounded(longest) // 8)
        context = min(-(-longest // step) * step, room)
        in_order = [s.slot for s in spans] == list(range(first, first + lines))
        return Size(lines, width, context, _rounded(nodes) if nodes > 0 else 0, first if in_order else -1)


def _rounded(x: int) -> int:
    """The next power of two."""
    return 1 << (x - 1).bit_length()


def spans_of(x: HostInput, length: Callable[[int], int], lines: Mapping[int, int]) -> list[Span]:
    """The spans of a pass whose tokens are known to the host. `length`: committed entries of a slot. `lines`: known staged
    entries of slots whose tokens follow entries of an earlier pass."""
    found: list[Span] = []
    for slot, start, stop in slot_runs(x.slots):
        first = x.entries[start]
        line = lines[slot] if first else _line(x.parents[start:stop])
        found.append(Span(slot, start, stop, length(slot), first, line))
    return found


def _line(parents: list[int]) -> int:
    """How many tokens form a chain before the first branch."""
    line = 0
    while line < len(parents) and parents[line] == line - 1:
        line += 1
    return min([line, *(p + 1 for p in parents[line:])])  # a branch in the middle ends the line there


@dataclass(frozen=True, slots=True, eq=False)
class Buffers:
    """The input of every pass of one size, at fixed addresses."""

    size: Size
    ids: Int[Tensor, "lines width"]
    positions: Int[Tensor, "lines width"]
    parents: Int[Tensor, "lines width"]
    meta: Int[Tensor, "5 lines"]  # slot, done, first and line as in Span, then the number of tokens
    hidden: Float[Tensor, "lines width d"] | None = None

    @staticmethod
    def empty(size: Size, cache: DeviceCache, hidden: tuple[int, torch.dtype] | None) -> "Buffers":
        shape, device = (size.lines, size.width), cache.device
        ids, positions, parents = (torch.zeros(shape, dtype=torch.int64, device=device) for _ in range(3))
        meta = torch.zeros(5, size.lines, dtype=torch.int64, device=device)
        given = None if hidden is None else torch.zeros(*shape, hidden[0], dtype=hidden[1], device=device)
        return Buffers(size, ids, positions, parents, meta, given)

    def fill(
        self, x: ForwardInput, spans: Sequence[Span], index: Int[Tensor, "lines width"] | None, padding: int
    ) -> None:
        """`index`: which token stands where; None: they are a rectangle already. `padding`: the slot of empty lines."""
        empty = self.size.lines - len(spans)
        lines = [(s.slot, s.done, s.first, s.line, s.stop - s.start) for s in spans] + [(padding, 0, 0, 1, 0)] * empty
        self.meta.copy_(put(list(zip(*lines, strict=True)), self.meta.device))
        for buffer, flat in ((self.ids, x.ids), (self.positions, x.positions), (self.parents, x.parents)):
            _place(buffer, flat, len(spans), index)
        if self.hidden is not None and x.hidden is not None:
            _place(self.hidden, x.hidden, len(spans), index)


def _place(buffer: Tensor, flat: Tensor, lines: int, index: Int[Tensor, "lines width"] | None) -> None:
    if index is None:
        part = flat.view(lines, -1, *flat.shape[1:])
        buffer[:lines, : part.shape[1]] = part
    else:
        buffer[:lines] = flat[index]


def placed(spans: Sequence[Span], size: Size, x: ForwardInput) -> Int[Tensor, "lines width"] | None:
    """Which token of the pass stands where in the rectangle; padding repeats a line's last. None: the lines are the whole
    pass and equally long, so no index is needed."""
    if len({s.stop - s.start for s in spans}) == 1 and sum(s.stop - s.start for s in spans) == x.size:
        return None
    return put([[min(s.start + w, s.stop - 1) for w in range(size.width)] for s in spans], x.ids.device)


def flat_places(spans: Sequence[Span], size: Size, total: int) -> list[int]:
    """Where each token of the pass stands in the rectangle, line after line."""
    places = [0] * total
    for line, s in enumerate(spans):
        places[s.start : s.stop] = range(line * size.width, line * size.width + s.stop - s.start)
    return places


class TreeTable:
    """Parents and positions of the staged entries of every slot, for passes that add one level to a tree."""

    def __init__(self, cache: DeviceCache) -> None:
        shape = (cache.padding + 1, MOST_NODES + 1)  # the last column takes known text
        self.parents, self.positions = (torch.zeros(shape, dtype=torch.int64, device=cache.device) for _ in range(2))


class Attention:
    """Attention of all layers of one pass: where new entries are written, and which entries each token attends to.
    `mutual`: the tokens behind the known text attend to one another, instead of to those on their own path."""

    def __init__(
        self,
        buffers: Buffers,
        cache: DeviceCache,
        table: TreeTable,
        dtype: torch.dtype,
        window: int | None,
        mutual: bool = False,
        *,
        full_layers: Sequence[int] = (),
        cap: float | None = None,
    ) -> None:
        slots, done, first, line, count = buffers.meta
        size, device = buffers.size, slots.device
        self.size, self.cache, self.slots = size, cache, slots
        index = torch.arange(size.width, device=device)
        staged = first[:, None] + index
        place = done[:, None] + staged
        # Padding may compute NaN, and NaN times zero is NaN, so its entries are written where no text reads them.
        written = torch.where(index < count[:, None], place.clamp_max(cache.room), cache.room)
        self._places = cache.places(slots[:, None].expand_as(place), written)
        node = staged - line[:, None]  # number in the tree; negative in the known text
        column = torch.arange(size.context, device=device)

        def mask(window: int | None) -> Tensor:
            visible = column <= torch.where(node >= 0, (done + line)[:, None] - 1, place)[..., None]
            if window is not None:
                visible = visible & (column > buffers.positions[..., None] - window)
            if size.nodes and mutual:
                behind = column - (done + line)[:, None]
                inside = (behind >= 0) & (behind < (first + count - line)[:, None])
                visible = visible | ((node >= 0)[..., None] & inside[:, None])
            elif size.nodes:
                visible = visible | self._tree(buffers, table, node, column - (done + line)[:, None], window)
            open_ = torch.zeros(visible.shape, dtype=dtype, device=device)
            return open_.masked_fill(~visible, -torch.inf)

        self._full, self._cap = frozenset(full_layers), cap
        self._masks = {False: mask(window)} | ({True: mask(None)} if self._full else {})  # by whether a layer sees all
        self._folded: dict[bool, Tensor] = {}

    def _tree(
        self, buffers: Buffers, table: TreeTable, node: Tensor, behind: Int[Tensor, "lines context"], window: int | None
    ) -> Tensor:
        """Which entries behind the known text lie on the token's own path."""
        slots, _, _, line, _ = buffers.meta
        nodes = self.size.nodes
        at = torch.where((node >= 0) & (node < MOST_NODES), node, MOST_NODES)
        table.parents[slots[:, None], at] = (buffers.parents - line[:, None]).clamp_min(-1)
        table.positions[slots[:, None], at] = buffers.positions
        parents = table.parents[slots][:, :nodes]
        index = torch.arange(nodes, device=slots.device)
        above = (index == index[:, None]) | (index == parents[..., None])  # itself and its parent
        path = above.to(torch.float32)
        for _ in range((nodes - 1).bit_length()):  # each product doubles the number of ancestors
            path = (path @ path).clamp_max_(1.0)
        own = path.gather(1, node.clamp(0, nodes - 1)[..., None].expand(-1, -1, nodes)) > 0
        own = own & (node >= 0)[..., None]
        if window is not None:
            own = own & (table.positions[slots][:, None, :nodes] > buffers.positions[..., None] - window)
        inside = (behind >= 0) & (behind < nodes)
        spread = own.gather(2, behind.clamp(0, nodes - 1)[:, None].expand(-1, node.shape[1], -1))
        return spread & inside[:, None]

    def __call__(
        self, index: int, q: Float[Tensor, "T heads d"], k: Float[Tensor, "T kv d"], v: Float[Tensor, "T kv d"]
    ) -> Float[Tensor, "T heads*d"]:
        """Write the new entries of one layer, then attend."""
        lines, width, context = self.size.lines, self.size.width, self.size.context
        total, heads, d = q.shape
        kv = k.shape[1]
        group = heads // kv
        pair = self.cache.pair(index)
        pair.view(-1, d).index_copy_(0, self._places, torch.cat([k, v], dim=1).view(-1, d))
        keys, values = (x[0] for x in self.cache.read(pair[None], self.slots, self.size.slot, context))
        query = q.view(lines, width, kv, group, d).permute(0, 2, 3, 1, 4).reshape(lines, kv, group * width, d)
        mixed = self._attend(query, keys, values, index in self._full)
        mixed = mixed.view(lines, kv, group, width, d).permute(0, 3, 1, 2, 4)
        return mixed.reshape(total, heads * d)

    def group(
        self,
        layers: range,
        q: Float[Tensor, "g T heads d"],
        k: Float[Tensor, "g T kv d"],
        v: Float[Tensor, "g T kv d"],
    ) -> Float[Tensor, "g T heads*d"]:
        """The same for several layers that read one input, in about as many launches as one."""
        lines, width, context = self.size.lines, self.size.width, self.size.context
        count, total, heads, d = q.shape
        kv = k.shape[2]
        pairs = self.cache.pairs(layers)
        behind = pairs[0].numel() // d * torch.arange(count, device=q.device)[:, None]
        written = torch.cat([k, v], dim=2).view(-1, d)
        pairs.view(-1, d).index_copy_(0, (self._places + behind).flatten(), written)
        keys, values = self.cache.read(pairs, self.slots, self.size.slot, context)
        query = q.view(count, lines, width, kv, heads // kv, d).permute(0, 1, 3, 4, 2, 5)
        mixed = self._attend_group(query.reshape(count, lines, kv, -1, d), keys, values)
        mixed = mixed.view(count, lines, kv, heads // kv, width, d).permute(0, 1, 4, 2, 3, 5)
        return mixed.reshape(count, total, heads * d)

    def _attend_group(
        self, q: Float[Tensor, "g B kv n d"], k: Float[Tensor, "g B kv context d"], v: Float[Tensor, "g B kv context d"]
    ) -> Float[Tensor, "g B kv n d"]:
        """As `_attend`. The two products stay one batch for each layer: entries of several layers do not lie at equal
        distances, so that one batch of all would copy them."""
        count, lines, kv, n, d = q.shape
        context = self.size.context
        if lines * kv * n * context > MOST_MASKED:
            return torch.stack([self._attend(*each) for each in zip(q, k, v, strict=True)])
        mask = self._mask_of_heads(kv, n // self.size.width)
        score, mixed = q.new_empty(count, lines * kv, n, context), torch.empty_like(q)
        for j in range(count):
            queries, keys = q[j].flatten(0, 1), k[j].flatten(0, 1).transpose(1, 2)
            torch.baddbmm(mask, queries, keys, alpha=d**-0.5, out=score[j])
        weights = torch.softmax(score, dim=-1)
        for j in range(count):
            torch.bmm(weights[j], v[j].flatten(0, 1), out=mixed[j].flatten(0, 1))
        return mixed

    def _mask_of_heads(self, kv: int, group: int, full: bool = False) -> Float[Tensor, "folded n context"]:
        """The mask for every head, made once per pass."""
        if full not in self._folded:
            self._folded[full] = self._masks[full][:, None].repeat(1, kv, group, 1).flatten(0, 1)
        return self._folded[full]

    def _attend(
        self,
        q: Float[Tensor, "B kv n d"],
        k: Float[Tensor, "B kv context d"],
        v: Float[Tensor, "B kv context d"],
        full: bool = False,
    ) -> Float[Tensor, "B kv n d"]:
        """Two products, with the mask added in the first: with few queries per head most of a fused kernel's tile is empty.
        With many queries a mask for every head would take too much memory, so the kernel is fused."""
        lines, kv, n, d = q.shape
        group = n // self.size.width
        many = lines * kv * n * self.size.context > MOST_MASKED
        if many or self._cap is not None:
            if full not in self._folded:
                self._folded[full] = self._masks[full][:, None].repeat(1, 1, group, 1)
            mix = F.scaled_dot_product_attention if self._cap is None else capped_mix(self._cap)
            return mix(q, k, v, self._folded[full])
        mask = self._mask_of_heads(kv, group, full)
        score = torch.baddbmm(mask, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), alpha=d**-0.5)
        return torch.bmm(torch.softmax(score, dim=-1), v.flatten(0, 1)).view(q.shape)

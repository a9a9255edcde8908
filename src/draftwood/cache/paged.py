"""PagedCache: a device cache in blocks of 16 entries. Texts that begin alike share their full blocks.

Lengths and the table of blocks are read on the device, so a captured pass serves every length. Staged entries lie in blocks
that only their slot holds: at admission a block that is shared in part is copied, and behind it a slot has its own.
A free slot keeps its text and blocks until others need them.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from draftwood.cache.block_table import FIRST, PADDING, BlockTable
from draftwood.cache.device import DeviceCache
from draftwood.core.forward import CacheSpec
from draftwood.core.host import put
from draftwood.errors import EngineError, OutOfBlocks
from draftwood.kernels.gpu.arguments import STORED_WORDS
from draftwood.kernels.gpu.twins import Twins

BLOCK = 16
INITIAL_BLOCKS = 32  # for each slot
MOST_NODES = 64 * STORED_WORDS


class PagedCache(DeviceCache):
    """`operations`: what moves entries, the kernels or their twins."""

    def __init__(
        self,
        specs: Sequence[CacheSpec],
        *,
        slots: int,
        capacity: int,
        max_cache_tokens: int | None = None,
        device: torch.device | str = "cpu",
        pools: Sequence[CacheSpec] = (),
        operations: Twins | None = None,
    ) -> None:
        tokens = slots * capacity if max_cache_tokens is None else max_cache_tokens
        self.operations = Twins() if operations is None else operations
        self._most_blocks = FIRST + -(-tokens // BLOCK) + slots  # the last block of each slot is filled in part
        first = min(self._most_blocks, FIRST + slots * INITIAL_BLOCKS)
        columns = -(-capacity // BLOCK) + 1
        self.blocks = BlockTable(slots + 1, columns, first)
        super().__init__(
            specs, slots=slots, capacity=capacity, max_cache_tokens=max_cache_tokens, device=device, pools=pools
        )
        self._written = [False] * first
        self._moved = False  # whether the stores have other addresses than at the last `note`
        self.table = torch.zeros(slots + 1, columns, dtype=torch.int32, device=self.device)
        # Ancestors of staged nodes, for passes that add a level to a tree.
        self.trees = torch.zeros(slots + 1, MOST_NODES, STORED_WORDS, dtype=torch.int64, device=self.device)

    def _shape(self, spec: CacheSpec, size: int) -> tuple[int, ...]:
        return len(self.blocks.refs), spec.heads, BLOCK, spec.width

    @property
    def room(self) -> int:
        return self.capacity

    def store(self, name: str) -> Tensor:
        """[slots, heads, entries, width], gathered: for checks. Writing to it changes nothing."""
        return self._stores[name][self.table.long()].transpose(1, 2).flatten(2, 3)

    def pool(self, name: str) -> Tensor:
        """[blocks, heads, 16, width]: entries of a part lie where `table` says."""
        if name not in self._pools:
            raise EngineError(f"the cache has no pool {name!r}\nhint: runner.open(..., pools=recipe.needs.pools)")
        return self._stores[name]

    def read_pool(
        self, name: str, slots: Int[Tensor, "n"], entries: Int[Tensor, "n"]
    ) -> Shaped[Tensor, "n heads width"]:
        return self.pool(name)[self.table[slots, entries // BLOCK].long(), :, entries % BLOCK]

    def write_pool(
        self, name: str, slots: Int[Tensor, "n"], entries: Int[Tensor, "n"], values: Shaped[Tensor, "n heads width"]
    ) -> None:
        known = entries.clamp_max(self.room)
        block = torch.where(entries < self.room, self.table[slots, known // BLOCK].long(), PADDING)
        self.pool(name)[block, :, entries % BLOCK] = values

    def places(self, slots: Int[Tensor, "B W"], entries: Int[Tensor, "B W"]) -> Int[Tensor, "n"]:
        _, count, heads, _, _ = self.pair(0).shape
        exists = entries < self.room
        block = torch.where(exists, self.table[slots, entries // BLOCK].long(), PADDING)
        head = torch.arange(heads, device=self.device)
        keys = (block[..., None] * heads + head) * BLOCK + entries[..., None] % BLOCK
        return torch.cat([keys, keys + count * heads * BLOCK], dim=-1).flatten()

    def read(
        self, pairs: Tensor, slots: Int[Tensor, "B"], first: int, context: int
    ) -> tuple[Float[Tensor, "g B heads context d"], Float[Tensor, "g B heads context d"]]:
        """Copies them together."""
        blocks = self.table[slots, : -(-context // BLOCK)].long()
        found = pairs.index_select(2, blocks.flatten()).unflatten(2, blocks.shape)
        found = found.transpose(3, 4).flatten(4, 5)[..., :context, :]
        return found[:, 0], found[:, 1]

    def note(self, slot: int, staged: int) -> bool:
        s = self._slots[slot]
        if not s.owned:
            raise EngineError(f"slot {slot} is written without being admitted")
        end = min(len(s.text) + staged, self.capacity)
        self._extend(slot, -(-end // BLOCK))
        s.ids += [-1] * (staged - len(s.ids))
        self._touch(slot)
        moved, self._moved = self._moved, False  # by this call, or by an admission before it
        return moved

    def ready(self) -> None:
        """Blocks that were given since the last pass, in one copy."""
        changed = sorted(self.blocks.changed)
        if changed:
            rows = put(list(self.blocks.rows[changed]), self.device).to(torch.int32)
            self.table.index_copy_(0, put(changed, self.device), rows)
            self.blocks.changed.clear()

    def admit(self, slot: int, tokens: Sequence[int], most: int | None = None, before: Sequence[int] = ()) -> int:
        """As in DenseCache, without a copy of what is shared: full blocks are held by both slots."""
        mine = self._slots[slot]
        if mine.owned:
            raise EngineError(f"slot {slot} is admitted twice")
        want, front = list(tokens[:-1]), tuple(before)
        shared = [self._usable(i, want, most) if s.before == front else 0 for i, s in enumerate(self._slots)]
        best = max(range(self.slots), key=lambda i: (shared[i], i == slot))
        size = shared[best]
        full, partial = divmod(size, BLOCK)
        source = self.blocks.of(best)[full] if partial else None
        if source is not None:
            self.blocks.hold(source)
        if best != slot:
            held = self.blocks.of(best)[:full]
            for block in held:  # they may be only in free slots, whose blocks can be taken
                self.blocks.hold(block)
            self.blocks.cut(slot, 0)
            self.blocks.share(slot, best, full)
            for block in held:
                self.blocks.drop(block)
        self.blocks.cut(slot, full)
        mine.owned, mine.text, mine.before = True, list(tokens[:size]), front
        mine.filled = dict.fromkeys(self._pools, size)
        if source is not None:
            self._extend(slot, full + 1)
            self._copy(source, self.blocks.of(slot)[full], partial)
            self.blocks.drop(source)
        self._touch(slot)
        return size

    def _copy(self, source: int, to: int, entries: int) -> None:
        for joined in self._joined.values():
            joined[:, to, :, :entries] = joined[:, source, :, :entries]
            joined[:, to, :, entries:] = 0  # of another text: it is only masked, and NaN times zero is NaN

    def _extend(self, slot: int, count: int) -> None:
        """Blocks of a slot up to `count`."""
        missing = count - self.blocks.counts[slot]
        if missing <= 0:
            return
        if missing > len(self.blocks.free):
            self._more(len(self.blocks.refs) + missing - len(self.blocks.free))
        while missing > len(self.blocks.free):
            self._take_back(slot)
        taken = self.blocks.append(slot, missing)
        again = [block for block in taken if self._written[block]]
        for block in taken:
            self._written[block] = True
        if again:
            index = put(again, self.device)
            for joined in self._joined.values():
                joined.index_fill_(1, index, 0)

    def _more(self, wanted: int) -> None:
        have = len(self.blocks.refs)
        size = min(self._most_blocks, max(wanted, 2 * have))
        if size <= have:
            return
        with torch.inference_mode(False):
            for names, joined in self._joined.items():
                self._joined[names] = torch.nn.functional.pad(joined, (0, 0, 0, 0, 0, 0, 0, size - have))
        self._stores = self._named()
        self.blocks.grow(size)
        self._written += [False] * (size - have)
        self._moved = True

    def _take_back(self, asking: int) -> None:
        """The blocks of the free slot that was unused for longest; its text is forgotten."""
        idle = [i for i, s in enumerate(self._slots) if not s.owned and self.blocks.counts[i] and i != asking]
        if idle:
            return self._forget(min(idle, key=lambda i: self._slots[i].used))
        for i, s in enumerate(self._slots):  # blocks of nodes that an earlier round staged
            if i != asking:
                self.blocks.cut(i, -(-(len(s.text) + len(s.ids)) // BLOCK))
        if not self.blocks.free:
            raise OutOfBlocks(f"slot {asking} needs a block, all {len(self.blocks.refs) - FIRST} are in use")

    def _forget(self, slot: int) -> None:
        self._slots[slot].text, self._slots[slot].before = [], ()
        self.blocks.cut(slot, 0)

    def free(self, slots: Sequence[int]) -> None:
        super().free(slots)
        for slot in slots:
            self.blocks.cut(slot, -(-self.length(slot) // BLOCK))

    def forget(self) -> None:
        for slot, s in enumerate(self._slots):
            if not s.owned:
                self._forget(slot)

    def _move(self, slots: Sequence[int], moves: Sequence[Sequence[tuple[int, int]]]) -> None:
        flat: list[list[int]] = [[], []]
        starts = [0]
        for slot, each in zip(slots, moves, strict=True):
            blocks = self.blocks.rows[slot]
            for move in each:
                for column, entry in zip(flat, move, strict=True):
                    column.append(int(blocks[entry // BLOCK]) * BLOCK + entry % BLOCK)
            if each:
                starts.append(len(flat[0]))
        source, to = put(flat, self.device).unbind(0)
        first = put(starts, self.device)
        for joined in self._joined.values():
            self.operations.moved(joined, source, to, first, max(map(len, moves)))

    def check_integrity(self) -> None:
        super().check_integrity()
        self.blocks.check()
        for i in range(self.slots):
            size, held = self.length(i), self.blocks.of(i)
            if len(held) * BLOCK < size:
                raise EngineError(f"slot {i} holds {size} entries in {len(held)} blocks")
            if any(self.blocks.refs[block] > 1 for block in held[size // BLOCK :]):
                raise EngineError(f"slot {i} shares a block that it writes to")

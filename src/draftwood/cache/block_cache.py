"""BlockCache: entries in blocks of 32, which texts that begin alike share, for kernels that read through a table of blocks.

    one store   [heads, blocks * 32, width]      entry e of a slot lies at 32 * table[slot, e // 32] + e % 32

Full blocks are found by later texts as soon as they are committed, and held by every slot whose text begins with them.
Staged entries lie behind the text in blocks that only their slot holds: at admission a block that is shared in part is
copied. Memory follows the blocks in use, not the longest text. Blocks that nobody holds are given up when room is needed,
those unused for longest first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from draftwood.cache.blocks import SIZE, Blocks
from draftwood.cache.dense import DenseCache
from draftwood.core.common_prefix import common_prefix
from draftwood.core.forward import CacheSpec, Segment
from draftwood.core.host import put
from draftwood.core.protocols import Saved
from draftwood.errors import EngineError, OutOfBlocks

_INITIAL = 512 // SIZE  # blocks for each slot
_SHARE = 0.5  # of the blocks may be held before more are made in place of idle ones, if nobody has set a bound


@dataclass(frozen=True, slots=True, eq=False)
class SavedText:
    """A copy of the entries of a text, outside of the blocks."""

    text: tuple[int, ...]
    before: tuple[int, ...]
    stores: tuple[Tensor, ...]  # [stores, heads, entries, width] of each shape

    @property
    def num_tokens(self) -> int:
        return len(self.text)


class BlockCache(DenseCache):
    """`max_cache_tokens`, in whole blocks, bounds the memory: what texts share counts once, and the last block of each text
    counts whole."""

    def __init__(
        self,
        specs: Sequence[CacheSpec],
        *,
        slots: int,
        capacity: int,
        max_cache_tokens: int | None = None,
        pools: Sequence[CacheSpec] = (),
    ) -> None:
        self.most_blocks = slots * _blocks(capacity) if max_cache_tokens is None else _blocks(max_cache_tokens)
        first = min(self.most_blocks, slots * _INITIAL)
        self.blocks = Blocks(slots, _blocks(capacity), first)
        super().__init__(specs, slots=slots, capacity=capacity, max_cache_tokens=max_cache_tokens, pools=pools)
        if self._states is not None:
            raise EngineError("per-slot states are not kept in blocks\nhint: DenseCache")
        self._share = _SHARE if max_cache_tokens is None else 0.0
        self._allocated = capacity  # blocks are appended slot by slot
        self._rows, self._row_bytes = self.blocks.rows.ctypes.data, self.blocks.rows.strides[0]

    def _shape(self, spec: CacheSpec, size: int) -> tuple[int, ...]:
        return spec.heads, len(self.blocks.refs) * SIZE, spec.width

    # --- what passes read and write

    def place(self, slot: int) -> tuple[int, int | None]:
        if self.blocks.straight[slot]:
            return int(self.blocks.rows[slot, 0]), None
        return 0, self._rows + slot * self._row_bytes

    def store(self, name: str) -> Tensor:
        """[slots, heads, entries, width], gathered: for checks. Writing to it changes nothing."""
        longest = max(self.blocks.counts) * SIZE
        places = torch.tensor([self.places(slot, range(longest)) for slot in range(self.slots)], dtype=torch.int64)
        return self._stores[name][:, places].transpose(0, 1)

    def pairs(self, layers: range) -> Tensor:
        raise EngineError("a cache in blocks has no entries in one stretch\nhint: read where `place` says")

    def pool(self, name: str) -> Tensor:
        """[heads, entries, width]: where entries of a slot lie is what `places` says."""
        if name not in self._pools:
            raise EngineError(f"the cache has no pool {name!r}\nhint: runner.open(..., pools=recipe.needs.pools)")
        return self._stores[name]

    def read_pool(
        self, name: str, slots: Int[Tensor, "n"], entries: Int[Tensor, "n"]
    ) -> Shaped[Tensor, "n heads width"]:
        return self.pool(name)[:, self._places(slots, entries)].transpose(0, 1)

    def write_pool(
        self, name: str, slots: Int[Tensor, "n"], entries: Int[Tensor, "n"], values: Shaped[Tensor, "n heads width"]
    ) -> None:
        self.pool(name)[:, self._places(slots, entries)] = values.transpose(0, 1)

    def _places(self, slots: Int[Tensor, "n"], entries: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        return torch.from_numpy(self.blocks.rows)[slots, entries // SIZE] * SIZE + entries % SIZE

    def places(self, slot: int, entries: Sequence[int]) -> list[int]:
        """Where these entries of a slot lie in a store; those without a block, anywhere."""
        row = self.blocks.rows[slot].tolist()
        return [row[min(e // SIZE, len(row) - 1)] * SIZE + e % SIZE for e in entries]

    def filled(self, slot: int, name: str, upto: int) -> None:
        super().filled(slot, name, upto)
        self._publish(slot)

    # --- texts that come

    def prefer(self, tokens: Sequence[int], free: Sequence[int], before: Sequence[int] = ()) -> int:
        """Any: entries belong to no slot. The one unused for longest, as elsewhere."""
        return min(free, key=lambda i: self._slots[i].used)

    def present(self, tokens: Sequence[int], before: Sequence[int] = ()) -> tuple[int, int]:
        full, part = self._found(list(tokens[:-1]), tuple(before))
        held = sum(self.blocks.refs[block] > 0 for block in full)
        return len(full) * SIZE + (0 if part is None else part[1]), held * SIZE

    def _found(self, want: list[int], front: tuple[int, ...]) -> tuple[list[int], tuple[int, int] | None]:
        """The full blocks with which a text begins, and a block that begins as the text goes on, with how many tokens."""
        full = self.blocks.tree.find(front, want)
        rest = want[len(full) * SIZE :][:SIZE]
        best = self.blocks.tree.nearest(full[-1] if full else front, rest) if rest else None
        for slot, s in enumerate(self._slots):  # the ends of texts that run
            if s.owned and s.before == front and rest and self.blocks.published[slot] == len(full):
                i = len(full)
                end = s.text[i * SIZE : min(len(s.text), *s.filled.values()) if s.filled else len(s.text)]
                agree = common_prefix(end, rest)
                if agree > (0 if best is None else best[1]) and self.blocks.of(slot)[:i] == full:
                    best = int(self.blocks.rows[slot, i]), agree
        return full, best

    def admit(self, slot: int, tokens: Sequence[int], most: int | None = None, before: Sequence[int] = ()) -> int:
        """As in DenseCache, without a copy of full blocks."""
        mine, blocks = self._slots[slot], self.blocks
        if mine.owned:
            raise EngineError(f"slot {slot} is admitted twice")
        want, front = list(tokens[:-1]), tuple(before)
        if most is not None:
            want = want[: max(most, 0)]
        full, part = self._found(want, front)
        mine.owned, mine.before, mine.text = True, front, []
        blocks.hold(slot, full)
        size = len(full) * SIZE
        if part is not None and self._start_from(slot, *part):
            size += part[1]
        mine.text = want[:size]
        mine.filled = dict.fromkeys(self._pools, size)
        self._publish(slot)
        self._touch(slot)
        return size

    def _start_from(self, slot: int, source: int, entries: int) -> bool:
        """The first entries of a block as the slot's next ones. False if there is no room for a copy."""
        tree = self.blocks.tree
        if source in tree.idle and len(tree.known[source].tokens) == entries and not tree.below.get(source):
            self.blocks.take_over(slot, source)
            return True
        was_idle = source in tree.idle
        self.blocks.refs[source] += 1  # so that it is not given up for the copy of itself
        tree.idle.pop(source, None)
        try:
            self._extend([slot], [self.blocks.counts[slot] + 1])
        except OutOfBlocks:
            return False
        finally:
            self.blocks.refs[source] -= 1
            if was_idle:
                tree.idle[source] = None
        to = int(self.blocks.rows[slot, self.blocks.counts[slot] - 1]) * SIZE
        for joined in self._joined.values():
            joined[:, :, to : to + entries] = joined[:, :, source * SIZE : source * SIZE + entries]
        return True

    # --- room

    def _extend(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        """So many blocks for each slot at least, or OutOfBlocks and no change."""
        blocks = self.blocks
        missing = [max(count - blocks.counts[slot], 0) for slot, count in zip(slots, counts, strict=True)]
        wanted = sum(missing)
        if not wanted:
            return
        held = len(blocks.refs) - blocks.available
        if wanted > len(blocks.free) and (held + wanted > self._share * len(blocks.refs) or wanted > blocks.available):
            self._more(len(blocks.refs) + wanted - len(blocks.free))
        if wanted > blocks.available:
            self._trim(slots)
        if wanted > blocks.available:
            raise OutOfBlocks(f"{wanted} blocks are asked for, {blocks.available} of {len(blocks.refs)} are free")
        for slot, count in zip(slots, missing, strict=True):
            blocks.append(slot, count)

    def _trim(self, asking: Sequence[int]) -> None:
        """Blocks in which earlier rounds staged entries that they dropped."""
        for slot, s in enumerate(self._slots):
            if slot not in asking:
                self.blocks.cut(slot, _blocks(len(s.text) + len(s.ids)))

    def _more(self, wanted: int) -> None:
        have = len(self.blocks.refs)
        size = min(self.most_blocks, max(wanted, 2 * have))
        if size <= have:
            return
        with torch.inference_mode(False):
            for names, joined in self._joined.items():
                self._joined[names] = torch.nn.functional.pad(joined, (0, 0, 0, (size - have) * SIZE))
        self._stores = self._named()
        self.blocks.grow(size)

    @property
    def spare(self) -> int:
        held = len(self.blocks.refs) - self.blocks.available
        return (self.most_blocks - held) * SIZE

    def reserve(self, slots: Sequence[int], extra: Sequence[int]) -> None:
        for slot, more in zip(slots, extra, strict=True):
            if self.length(slot) + more > self.capacity:
                raise OutOfBlocks(f"slot {slot}: {self.length(slot)} + {more} entries, it holds {self.capacity}")
        self._extend(slots, [_blocks(self.length(slot) + more) for slot, more in zip(slots, extra, strict=True)])

    def _stage_slot(self, slot: int, start: int, ids: list[int], entries: list[int], parents: list[int]) -> Segment:
        s = self._slots[slot]
        end = len(s.text) + max(max(entries) + 1, len(s.ids))
        if end > self.blocks.counts[slot] * SIZE and s.owned and end <= self.capacity:
            self._extend([slot], [_blocks(end)])
        return super()._stage_slot(slot, start, ids, entries, parents)

    def wipe(self) -> None:
        """Nothing: kernels that read through a table leave out what a token does not attend to."""

    # --- rounds

    def commit(self, slots: Sequence[int], entries: Sequence[Sequence[int]]) -> None:
        super().commit(slots, entries)
        for slot in slots:
            self._publish(slot)

    def _pull(self, slot: int, to: int, sources: Sequence[int]) -> None:
        source = put(self.places(slot, sources), self.device)
        target = put(self.places(slot, range(to, to + len(sources))), self.device)
        for joined in self._joined.values():
            joined.index_copy_(2, target, joined.index_select(2, source))

    def _publish(self, slot: int) -> None:
        """Full blocks, as far as every pool is filled."""
        s, blocks = self._slots[slot], self.blocks
        size = min(len(s.text), *s.filled.values()) if s.filled else len(s.text)
        while (blocks.published[slot] + 1) * SIZE <= size:
            first = blocks.published[slot] * SIZE
            blocks.publish(slot, s.before, s.text[first : first + SIZE])

    # --- texts that go

    def free(self, slots: Sequence[int]) -> None:
        super().free(slots)
        for slot in slots:
            s, blocks = self._slots[slot], self.blocks
            size = min(len(s.text), *s.filled.values()) if s.filled else len(s.text)
            first = blocks.published[slot] * SIZE
            if size > first:
                blocks.publish_end(slot, s.before, s.text[first:size])
            blocks.cut(slot, 0)
            s.text, s.before, s.filled = [], (), dict.fromkeys(self._pools, 0)

    def forget(self) -> None:
        self.blocks.forget()

    def save(self, slot: int) -> SavedText:
        """A copy of the committed entries of a slot, as far as every pool is filled."""
        s = self._slots[slot]
        size = min(len(s.text), *s.filled.values()) if s.filled else len(s.text)
        places = put(self.places(slot, range(size)), self.device)
        stores = tuple(joined.index_select(2, places) for joined in self._joined.values())
        return SavedText(tuple(s.text[:size]), s.before, stores)

    def restore(self, slot: int, saved: Saved, tokens: Sequence[int], most: int | None = None) -> int:
        """All saved entries that the text has in common with these tokens, or none if there is no room."""
        s = self._slots[slot]
        first = len(s.text)
        if not isinstance(saved, SavedText) or saved.before != s.before:
            return first
        size = common_prefix(saved.text, tokens[:-1] if most is None else tokens[: min(most, len(tokens) - 1)])
        if size <= first:
            return first
        try:
            self._extend([slot], [_blocks(size)])
        except OutOfBlocks:
            return first
        places = put(self.places(slot, range(first, size)), self.device)
        for joined, copy in zip(self._joined.values(), saved.stores, strict=True):
            joined.index_copy_(2, places, copy[:, :, first:size])
        s.text = list(tokens[:size])
        s.filled = dict.fromkeys(self._pools, size)
        self._publish(slot)
        return size

    def check_integrity(self) -> None:
        for i, s in enumerate(self._slots):
            size, held = len(s.text), self.blocks.of(i)
            if size > self.capacity:
                raise EngineError(f"slot {i} holds {size} entries of {self.capacity}")
            if not s.owned and (s.ids or held):
                raise EngineError(f"slot {i} is free but has {len(s.ids)} staged entries and {len(held)} blocks")
            if len(held) * SIZE < size + len(s.ids):
                raise EngineError(f"slot {i} holds {size} entries in {len(held)} blocks")
            if self.blocks.published[i] * SIZE > size:
                raise EngineError(f"slot {i} has published more than its {size} entries")
            for k in range(self.blocks.published[i]):
                known = self.blocks.tree.known.get(held[k])
                above = self.blocks.above(i, k, s.before)
                if known is None or (known.above, list(known.tokens)) != (above, s.text[k * SIZE : (k + 1) * SIZE]):
                    raise EngineError(f"block {held[k]} of slot {i} is known by other tokens than it holds")
        self.blocks.check()


def _blocks(entries: int) -> int:
    return -(-entries // SIZE)

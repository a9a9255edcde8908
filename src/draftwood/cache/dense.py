"""DenseCache: one stretch of rows per slot, committed rows first, staged rows behind them.

    slot 3   | committed 0 .. n-1 | staged 0 1 2 3 4 |      free      |
                                    ^ row r lives at n + r

The stores begin short and double when a text outgrows them, so a long context is not paid for in advance.
Committing a chain therefore moves nothing; committing a path through a tree copies at most its length. The text of every
committed row is remembered, also after `free`, so a new request starts from the longest prefix that any slot still holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from draftwood.core.forward import CacheSpec, ForwardInput, Segment
from draftwood.errors import EngineError, OutOfBlocks

_FIRST_ROWS = 512
_NOBODY = np.zeros((0, 0), dtype=bool)
_ALONE = np.ones((1, 1), dtype=bool)


@dataclass(slots=True)
class _Slot:
    text: list[int] = field(default_factory=list[int])  # token of each committed row
    before: tuple[int, ...] = ()  # what stood in front of it
    owned: bool = False
    used: int = 0  # clock of the last use, for reuse of the oldest
    reserved: int = 0
    written: int = 0  # rows behind this one hold zeros
    ids: list[int] = field(default_factory=list[int])  # token of each staged row
    sees: np.ndarray = field(default_factory=lambda: _NOBODY)  # staged row -> staged rows it sees


class DenseCache:
    """Rows of `capacity` tokens for each of `slots` sequences; `max_cache_tokens` bounds the rows of all owners together."""

    def __init__(
        self,
        specs: Sequence[CacheSpec],
        *,
        slots: int,
        capacity: int,
        max_cache_tokens: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.slots, self.capacity = slots, capacity
        self.max_cache_tokens = slots * capacity if max_cache_tokens is None else max_cache_tokens
        rows = min(capacity, _FIRST_ROWS)
        self._stores = {s.name: torch.zeros(slots, s.heads, rows, s.width, dtype=s.dtype, device=device) for s in specs}
        self._rows = rows  # of a slot in the stores
        self._slots = [_Slot() for _ in range(slots)]
        self._clock = 0

    def store(self, name: str) -> Tensor:
        """[slots, heads, rows, width]; fetch it anew for every pass, because it may have grown."""
        return self._stores[name]

    def _grow(self, rows: int) -> None:
        """Room for `rows` rows in every slot."""
        have = self._rows
        if rows <= have:
            return
        self._rows = min(self.capacity, max(rows, 2 * have))
        more = self._rows - have
        for name, store in self._stores.items():
            self._stores[name] = torch.nn.functional.pad(store, (0, 0, 0, more))

    def length(self, slot: int) -> int:
        return len(self._slots[slot].text)

    @property
    def spare(self) -> int:
        """Rows nobody owns or has reserved."""
        return self.max_cache_tokens - sum(len(s.text) + s.reserved for s in self._slots if s.owned)

    def prefer(self, tokens: Sequence[int], free: Sequence[int]) -> int:
        """Of the free slots the one to use: the one that holds most of this text, else the one unused for longest."""
        want = list(tokens)
        return max(free, key=lambda i: (_shared(self._slots[i].text, want), -self._slots[i].used))

    def admit(self, slot: int, tokens: Sequence[int], most: int | None = None, before: Sequence[int] = ()) -> int:
        """Start from the longest prefix any slot holds behind the same tokens, or from `most` rows of it. The last token
        is never taken over: it is the root."""
        mine = self._slots[slot]
        if mine.owned:
            raise EngineError(f"slot {slot} is admitted twice")
        want, front = list(tokens[:-1]), tuple(before)
        shared = [_shared(s.text, want) if s.before == front else 0 for s in self._slots]
        best = max(range(self.slots), key=lambda i: (shared[i], i == slot))
        rows = shared[best] if most is None else min(shared[best], most)
        self._grow(rows)
        if best != slot and rows:
            for store in self._stores.values():
                store[slot, :, :rows] = store[best, :, :rows]
        mine.text, mine.before = list(tokens[:rows]), front
        mine.owned, mine.written = True, max(mine.written, rows)
        self._touch(slot)
        return rows

    def reserve(self, slots: Sequence[int], extra: Sequence[int]) -> None:
        """All or nothing: room for `extra` staged rows in each slot."""
        held = sum(len(s.text) for s in self._slots if s.owned)
        asked = sum(extra)
        if held + asked > self.max_cache_tokens:
            raise OutOfBlocks(
                f"{asked} rows asked for, {self.max_cache_tokens - held} of {self.max_cache_tokens} are free"
            )
        for slot, rows in zip(slots, extra, strict=True):
            if self.length(slot) + rows > self.capacity:
                raise OutOfBlocks(f"slot {slot}: {self.length(slot)} + {rows} rows, it holds {self.capacity}")
        for s in self._slots:
            s.reserved = 0
        for slot, rows in zip(slots, extra, strict=True):
            self._slots[slot].reserved = rows

    def stage(self, x: ForwardInput) -> list[Segment]:
        """Tokens of one slot must stand together in the pass, parents before children."""
        columns = x.to_host()
        slots, ids, rows, parents = columns.slots, columns.ids, columns.entries, columns.parents
        segments: list[Segment] = []
        start = 0
        while start < len(slots):
            stop = start
            while stop < len(slots) and slots[stop] == slots[start]:
                stop += 1
            if slots[start] >= 0:
                part = slice(start, stop)
                segments.append(self._stage_slot(slots[start], start, ids[part], rows[part], parents[part]))
            start = stop
        return segments

    def _stage_slot(self, slot: int, start: int, ids: list[int], rows: list[int], parents: list[int]) -> Segment:
        s = self._slots[slot]
        if len(rows) == 1 and rows[0] == 0 and not s.ids and s.owned and len(s.text) < self._rows:
            # Plain decoding, a thousand times a pass: one token behind the committed text.
            s.ids, s.sees = ids, _ALONE
            s.written = max(s.written, len(s.text) + 1)
            self._touch(slot)
            return Segment(slot, start, start + 1, len(s.text), 1, 0, True, None)
        size = max(rows) + 1
        if not s.owned:
            raise EngineError(f"slot {slot} is written without being admitted")
        if len(s.text) + max(size, len(s.ids)) > self.capacity:
            raise EngineError(f"slot {slot}: row {len(s.text) + size - 1} of {self.capacity}")
        self._grow(len(s.text) + max(size, len(s.ids)))
        first = rows[0]
        dense = rows == list(range(first, first + len(rows)))
        if size > len(s.ids):
            s.ids += [-1] * (size - len(s.ids))
        s.sees = _note(s.sees, rows, parents, size)
        for row, token in zip(rows, ids, strict=True):
            s.ids[row] = token
        staged = len(s.ids)
        s.written = max(s.written, len(s.text) + staged)
        alone = len(rows) == 1 and staged == 1
        visible = None if alone else torch.from_numpy(s.sees[rows, :staged])
        self._touch(slot)
        return Segment(slot, start, start + len(rows), len(s.text), staged, first, dense, visible)

    def wipe(self) -> None:
        """Zeros behind the staged rows of every slot of the pass. Once written over, nothing is left to do there until
        a slot gets a shorter text or a round throws rows away: plain decoding pays a glance."""
        ends = [(i, s, len(s.text) + len(s.ids)) for i, s in enumerate(self._slots) if s.ids]
        stale = [(i, s, end) for i, s, end in ends if s.written > end]
        if not stale:
            return
        device = next(iter(self._stores.values())).device
        rows = np.concatenate([np.arange(end, s.written) for _, s, end in stale])
        slots = np.repeat([i for i, _, _ in stale], [s.written - end for _, s, end in stale])
        at, row = (torch.from_numpy(x).to(device, non_blocking=True) for x in (slots, rows))
        for store in self._stores.values():
            store[at, :, row] = 0
        for _, s, end in stale:
            s.written = end

    def commit(self, slots: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        """Keep these staged rows in this order, drop the rest."""
        for slot, kept in zip(slots, rows, strict=True):
            s = self._slots[slot]
            if kept == [0] and s.ids and s.ids[0] >= 0:
                s.text.append(s.ids[0])
                self._drop_staged(s)
                continue
            wrong = [r for r in kept if not 0 <= r < len(s.ids) or s.ids[r] < 0]
            if wrong:
                raise EngineError(f"slot {slot} has no staged rows {wrong}")
            base = len(s.text)
            moved = next((i for i, r in enumerate(kept) if r != i), len(kept))
            if moved < len(kept):
                source = torch.tensor(kept[moved:]) + base
                for store in self._stores.values():
                    store[slot, :, base + moved : base + len(kept)] = store[slot, :, source.to(store.device)]
            s.text += [s.ids[r] for r in kept]
            self._drop_staged(s)

    def free(self, slots: Sequence[int]) -> None:
        """Give the slots back. Their text stays readable until somebody overwrites it."""
        for slot in slots:
            self._drop_staged(self._slots[slot])
            self._slots[slot].owned = False

    def text(self, slot: int) -> list[int]:
        """Tokens of the committed rows."""
        return list(self._slots[slot].text)

    def check_integrity(self) -> None:
        """EngineError if the books do not balance. Cheap; the engine calls it when it goes idle."""
        for i, s in enumerate(self._slots):
            if len(s.text) > self.capacity:
                raise EngineError(f"slot {i} holds {len(s.text)} rows of {self.capacity}")
            if not s.owned and (s.ids or s.reserved):
                raise EngineError(f"slot {i} is free but has {len(s.ids)} staged and {s.reserved} reserved rows")
        held = sum(len(s.text) for s in self._slots if s.owned)
        if held > self.max_cache_tokens:
            raise EngineError(f"{held} rows are owned, {self.max_cache_tokens} exist")

    def _touch(self, slot: int) -> None:
        self._clock += 1
        self._slots[slot].used = self._clock

    @staticmethod
    def _drop_staged(s: _Slot) -> None:
        s.ids, s.reserved, s.sees = [], 0, _NOBODY


def _note(sees: np.ndarray, rows: list[int], parents: list[int], size: int) -> np.ndarray:
    """Who sees whom after these rows: a row sees itself and whatever the row it follows sees."""
    if not len(sees) and rows == list(range(size)) and parents == list(range(-1, size - 1)):
        return np.tri(size, dtype=bool)
    if size > len(sees) or sees is _ALONE:  # what everybody shares is never written to
        size = max(size, len(sees))
        grown = np.zeros((size, size), dtype=bool)
        grown[: len(sees), : len(sees)] = sees
        sees = grown
    for row, parent in zip(rows, parents, strict=True):
        sees[row] = sees[parent] if parent >= 0 else False
        sees[row, row] = True
    return sees


def _shared(have: list[int], want: list[int]) -> int:
    """Length of the common prefix. Asked of every slot at every admission, so most answers must come from a few tokens:
    pieces double for as long as they agree."""
    size = min(len(have), len(want))
    low, step = 0, 8
    while low < size:
        here, there = have[low : low + step], want[low : low + step]
        if here != there:
            return low + next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), size - low)
        low, step = low + step, 2 * step
    return size

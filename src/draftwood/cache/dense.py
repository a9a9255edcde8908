"""DenseCache: one stretch of KV entries per slot, committed entries first, staged entries behind them.

    slot 3   | committed 0 .. n-1 | staged 0 1 2 3 4 |      free      |
                                    ^ staged entry e lies at n + e

Committing a chain moves nothing. Committing a path through a tree copies at most the path's length.
The stores begin short and double when a sequence outgrows them, so memory follows the longest sequence in use.
The tokens of committed entries are kept, also after `free`: a new request starts from the longest prefix in any slot.

Per-slot stores (cache/states.py) hold the state at the end of each text only. With such a store a new request starts from
the whole text of a slot if that is a prefix of its own, and otherwise from an empty cache.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from draftwood.cache.states import SlotStates, check_order
from draftwood.core.common_prefix import common_prefix
from draftwood.core.forward import CacheSpec, ForwardInput, Segment
from draftwood.core.host import put
from draftwood.core.protocols import Saved
from draftwood.errors import EngineError, OptionError, OutOfBlocks

_INITIAL_ENTRIES = 512
_EMPTY = np.zeros((0, 0), dtype=bool)
_SINGLE = np.ones((1, 1), dtype=bool)


@dataclass(slots=True)
class _Slot:
    text: list[int] = field(default_factory=list[int])  # token of each committed entry
    before: tuple[int, ...] = ()  # tokens in front of `text` that have no entries here
    owned: bool = False
    used: int = 0  # clock of the last use, for reuse of the oldest
    reserved: int = 0
    written: int = 0  # entries from here on hold zeros
    ids: list[int] = field(default_factory=list[int])  # token of each staged entry, -1: none, or unknown to the host
    filled: dict[str, int] = field(default_factory=dict[str, int])  # entries of each pool that its part has written
    visible: np.ndarray = field(default_factory=lambda: _EMPTY)  # [staged, staged]: which entries each one attends to


class DenseCache:
    """`capacity` entries for each of `slots` sequences; `max_cache_tokens` bounds the entries of all of them together.
    `pools`: stores that parts write instead of the model. They are committed, shared and freed like the model's."""

    def __init__(
        self,
        specs: Sequence[CacheSpec],
        *,
        slots: int,
        capacity: int,
        max_cache_tokens: int | None = None,
        device: torch.device | str = "cpu",
        pools: Sequence[CacheSpec] = (),
    ) -> None:
        self.slots, self.capacity, self.device = slots, capacity, torch.device(device)
        self.max_cache_tokens = slots * capacity if max_cache_tokens is None else max_cache_tokens
        size = min(capacity, _INITIAL_ENTRIES)
        alike: dict[CacheSpec, list[str]] = {}
        for s in (*specs, *pools):  # the model's stores come first in each tensor
            if not s.per_slot:
                alike.setdefault(replace(s, name=""), []).append(s.name)
        recurrent = [s for s in specs if s.per_slot]
        try:
            # Stores of one shape are one tensor [stores, slots, heads, entries, width]: a path moves in all of them at once.
            self._joined = {
                tuple(names): torch.zeros(len(names), *self._shape(s, size), dtype=s.dtype, device=device)
                for s, names in alike.items()
            }
            self._states = SlotStates(recurrent, slots, device) if recurrent else None
        except (RuntimeError, MemoryError) as error:
            why = str(error).partition("\n")[0]
            raise OptionError(
                f"no memory for a cache of {slots} sequences: {why}\nhint: a smaller max_num_seqs"
            ) from None
        self._stores = self._named()
        self._pools = frozenset(s.name for s in pools)
        if len(self._stores) + len(recurrent) < len(specs) + len(pools):
            raise OptionError(f"a part's pool has the name of another store: {sorted(self._pools)}")
        self._allocated, self._most = size, capacity  # entries of a slot in the stores, now and later
        self._slots = [_Slot(filled=dict.fromkeys(self._pools, 0)) for _ in range(slots)]
        self._clock = 0

    def _shape(self, spec: CacheSpec, size: int) -> tuple[int, ...]:
        """Of one store with room for `size` entries in each slot."""
        return self.slots, spec.heads, size, spec.width

    def store(self, name: str) -> Tensor:
        """[slots, heads, entries, width]; fetch it again for every pass, because it may have grown."""
        return self._stores[name]

    def entries(self, name: str) -> Tensor:
        """The numbers of a per-token store as they lie; fetch it again for every pass."""
        return self._stores[name]

    def place(self, slot: int) -> tuple[int, int | None]:
        """Where in `entries` those of a slot lie."""
        return slot, None

    def pairs(self, layers: range) -> Tensor:
        """[layers, 2, slots, heads, entries, width]: keys and values of consecutive layers of a decoder."""
        joined = next(iter(self._joined.values()))  # the model's stores have one shape and come first
        return joined[2 * layers.start : 2 * layers.stop].unflatten(0, (len(layers), 2))

    def state(self, name: str) -> Tensor:
        """[slots, heads, width]: of a per-slot store, after the committed text; zeros before the first token."""
        return self._recurrent.committed[name]

    def staged_states(self, name: str) -> Tensor:
        """[slots, staged, heads, width]: of a per-slot store, after each staged token; fetch it again for every pass."""
        return self._recurrent.staged[name]

    @property
    def _recurrent(self) -> SlotStates:
        if self._states is None:
            raise EngineError("this cache has no per-slot stores\nhint: CacheSpec(..., per_slot=True)")
        return self._states

    def pool(self, name: str) -> Tensor:
        """[slots, heads, entries, width] of a part; fetch it again after every pass, because it may have grown."""
        if name not in self._pools:
            raise EngineError(f"the cache has no pool {name!r}\nhint: runner.open(..., pools=recipe.needs.pools)")
        return self._stores[name]

    def read_pool(
        self, name: str, slots: Int[Tensor, "n"], entries: Int[Tensor, "n"]
    ) -> Shaped[Tensor, "n heads width"]:
        return self.pool(name)[slots, :, entries]

    def write_pool(
        self, name: str, slots: Int[Tensor, "n"], entries: Int[Tensor, "n"], values: Shaped[Tensor, "n heads width"]
    ) -> None:
        pool = self.pool(name)
        pool[slots, :, entries.clamp_max(pool.shape[2] - 1)] = values

    def filled(self, slot: int, name: str, upto: int) -> None:
        """The first `upto` entries of a pool are written."""
        self._slots[slot].filled[name] = upto

    def _grow(self, size: int) -> None:
        """Room for `size` entries in every slot."""
        have = self._allocated
        if size <= have:
            return
        self._allocated = min(self._most, max(size, 2 * have))
        more = self._allocated - have
        with torch.inference_mode(False):  # passes run in inference mode, commits need not
            for names, joined in self._joined.items():
                self._joined[names] = torch.nn.functional.pad(joined, (0, 0, 0, more))
        self._stores = self._named()

    def _named(self) -> dict[str, Tensor]:
        return {name: each for names, joined in self._joined.items() for name, each in zip(names, joined, strict=True)}

    def length(self, slot: int) -> int:
        return len(self._slots[slot].text)

    @property
    def spare(self) -> int:
        """Entries that are neither owned nor reserved."""
        return self.max_cache_tokens - sum(len(s.text) + s.reserved for s in self._slots if s.owned)

    def prefer(self, tokens: Sequence[int], free: Sequence[int], before: Sequence[int] = ()) -> int:
        """The free slot that shares the longest prefix with these tokens behind the same `before`; among equals, the one
        unused for longest."""
        want = list(tokens if self._states is None else tokens[:-1])  # a state that has read the root cannot be used
        front, slots = tuple(before), self._slots
        return max(free, key=lambda i: (self._usable(i, want) if slots[i].before == front else 0, -slots[i].used))

    def present(self, tokens: Sequence[int], before: Sequence[int] = ()) -> tuple[int, int]:
        """Entries that `admit` would find for these tokens, and how many of them need no room; here they are copied."""
        want, front = list(tokens[:-1]), tuple(before)
        return max((self._usable(i, want) for i, s in enumerate(self._slots) if s.before == front), default=0), 0

    def save(self, slot: int) -> Saved | None:
        """None: texts stay where they are until others need their slots."""
        return None

    def restore(self, slot: int, saved: Saved, tokens: Sequence[int], most: int | None = None) -> int:
        raise EngineError("a dense cache saves no text")

    def _usable(self, slot: int, want: list[int], most: int | None = None) -> int:
        """How many entries of a slot a text can start from, at most `most`: as far as the texts agree and every pool is
        filled. With per-slot states: all of them or none."""
        s = self._slots[slot]
        size = min(common_prefix(s.text, want), *s.filled.values()) if s.filled else common_prefix(s.text, want)
        if self._states is not None and (size < len(s.text) or (most is not None and size > most)):
            return 0
        return size if most is None else min(size, most)

    def admit(self, slot: int, tokens: Sequence[int], most: int | None = None, before: Sequence[int] = ()) -> int:
        """Take the slot and start from the longest prefix that any slot holds, at most `most` entries of it.

        A prefix counts only behind the same `before`. The last token never comes from a prefix: it is the root.
        With per-slot states a prefix counts only if it is the whole text of a slot.
        Returns the number of entries taken over."""
        mine = self._slots[slot]
        if mine.owned:
            raise EngineError(f"slot {slot} is admitted twice")
        want, front = list(tokens[:-1]), tuple(before)
        shared = [self._usable(i, want, most) if s.before == front else 0 for i, s in enumerate(self._slots)]
        best = max(range(self.slots), key=lambda i: (shared[i], i == slot))
        size = shared[best]
        if best != slot and size:
            for joined in self._joined.values():
                joined[:, slot, :, :size] = joined[:, best, :, :size]
        if self._states is not None:
            self._states.start(slot, best, size)
        mine.text, mine.before = list(tokens[:size]), front
        mine.owned, mine.written, mine.filled = True, max(mine.written, size), dict.fromkeys(self._pools, size)
        self._touch(slot)
        return size

    def reserve(self, slots: Sequence[int], extra: Sequence[int]) -> None:
        """Reserve `extra` staged entries in each slot, all of them or none; OutOfBlocks if they do not fit."""
        held = sum(len(s.text) for s in self._slots if s.owned)
        asked = sum(extra)
        if held + asked > self.max_cache_tokens:
            raise OutOfBlocks(
                f"{asked} cache entries asked for, {self.max_cache_tokens - held} of {self.max_cache_tokens} are free"
            )
        for slot, more in zip(slots, extra, strict=True):
            if self.length(slot) + more > self.capacity:
                raise OutOfBlocks(f"slot {slot}: {self.length(slot)} + {more} entries, it holds {self.capacity}")
        for s in self._slots:
            s.reserved = 0
        for slot, more in zip(slots, extra, strict=True):
            self._slots[slot].reserved = more

    def stage(self, x: ForwardInput) -> list[Segment]:
        """Note the tokens of a pass as staged entries; one Segment per slot.

        Tokens of one slot are adjacent in the pass, parents before children."""
        c = x.to_host()
        return [
            self._stage_slot(slot, start, c.ids[start:stop], c.entries[start:stop], c.parents[start:stop])
            for slot, start, stop in slot_runs(c.slots)
        ]

    def _stage_slot(self, slot: int, start: int, ids: list[int], entries: list[int], parents: list[int]) -> Segment:
        s = self._slots[slot]
        if len(entries) == 1 and entries[0] == 0 and not s.ids and s.owned and len(s.text) < self._allocated:
            # The fast path of plain decoding, up to a thousand slots a pass: one token behind the committed text.
            s.ids, s.visible = ids, _SINGLE
            s.written = max(s.written, len(s.text) + 1)
            self._touch(slot)
            return Segment(slot, start, start + 1, len(s.text), 1, 0, True, None)
        size = max(entries) + 1
        if not s.owned:
            raise EngineError(f"slot {slot} is written without being admitted")
        if len(s.text) + max(size, len(s.ids)) > self.capacity:
            raise EngineError(f"slot {slot}: entry {len(s.text) + size - 1} of {self.capacity}")
        self._grow(len(s.text) + max(size, len(s.ids)))
        if self._states is not None:
            check_order(slot, entries, parents, s.ids)
            self._states.grow(max(size, len(s.ids)))
        first = entries[0]
        dense = entries == list(range(first, first + len(entries)))
        if size > len(s.ids):
            s.ids += [-1] * (size - len(s.ids))
        s.visible = _add_visible(s.visible, entries, parents, size)
        for entry, token in zip(entries, ids, strict=True):
            s.ids[entry] = token
        staged = len(s.ids)
        s.written = max(s.written, len(s.text) + staged)
        single = len(entries) == 1 and staged == 1
        visible = None if single else torch.from_numpy(s.visible[entries, :staged])
        self._touch(slot)
        return Segment(slot, start, start + len(entries), len(s.text), staged, first, dense, visible)

    def wipe(self) -> None:
        """Write zeros behind the staged entries of every slot of the pass, where older values still lie.

        Those exist only after a slot got a shorter text or a round dropped entries, so plain decoding writes nothing."""
        for slot, s in enumerate(self._slots):
            if s.ids:
                self._zero(slot, len(s.text) + len(s.ids))

    def _zero(self, slot: int, first: int) -> None:
        """Zeros from entry `first` of a slot on."""
        s = self._slots[slot]
        if s.written > first:
            for joined in self._joined.values():
                joined[:, slot, :, first : s.written] = 0
            s.written = first

    def commit(self, slots: Sequence[int], entries: Sequence[Sequence[int]]) -> None:
        """Keep these staged entries in this order, drop the rest. The state after the last one is the slot's."""
        if self._states is not None:
            self._check_paths(slots, entries)
            self._states.keep(slots, entries)
        for slot, kept in zip(slots, entries, strict=True):
            s = self._slots[slot]
            if kept == [0] and s.ids and s.ids[0] >= 0:
                s.text.append(s.ids[0])
                self._drop_staged(s)
                continue
            wrong = [e for e in kept if not 0 <= e < len(s.ids) or s.ids[e] < 0]
            if wrong:
                raise EngineError(f"slot {slot} has no staged entries {wrong}")
            base = len(s.text)
            moved = next((i for i, e in enumerate(kept) if e != i), len(kept))
            if moved < len(kept):
                self._pull(slot, base + moved, [base + entry for entry in kept[moved:]])
            s.text += [s.ids[e] for e in kept]
            self._drop_staged(s)

    def _pull(self, slot: int, to: int, sources: Sequence[int]) -> None:
        """Copy entries of a slot to `to`, `to` + 1, ...; all are read before one is written."""
        index = put(sources, self.device)
        for joined in self._joined.values():
            joined[:, slot, :, to : to + len(sources)] = joined[:, slot].index_select(2, index)

    def _check_paths(self, slots: Sequence[int], entries: Sequence[Sequence[int]]) -> None:
        """EngineError if entries are kept without one that their last state has read, or with one that it has not."""
        for slot, kept in zip(slots, entries, strict=True):
            visible = self._slots[slot].visible
            if not kept:
                continue
            if max(kept) >= len(visible) or np.flatnonzero(visible[kept[-1]]).tolist() != sorted(kept):
                raise EngineError(f"slot {slot}: {list(kept)} is no whole path of staged entries")

    def free(self, slots: Sequence[int]) -> None:
        """Give the slots back. Their entries and states can be reused as a prefix until they are overwritten."""
        for slot in slots:
            self._drop_staged(self._slots[slot])
            self._slots[slot].owned = False

    def forget(self) -> None:
        """Drop the texts of free slots, so that no later text starts from them."""
        for slot, s in enumerate(self._slots):
            if not s.owned:
                s.text, s.before = [], ()
                if self._states is not None:
                    self._states.start(slot, slot, 0)

    def text(self, slot: int) -> list[int]:
        """Tokens of the committed entries."""
        return list(self._slots[slot].text)

    def check_integrity(self) -> None:
        """EngineError if the counts contradict each other. Cheap; the engine calls it when it goes idle."""
        for i, s in enumerate(self._slots):
            if len(s.text) > self.capacity:
                raise EngineError(f"slot {i} holds {len(s.text)} entries of {self.capacity}")
            if not s.owned and (s.ids or s.reserved):
                raise EngineError(f"slot {i} is free but has {len(s.ids)} staged and {s.reserved} reserved entries")
            if self._states is not None:
                self._states.check(i, len(s.text))
        held = sum(len(s.text) for s in self._slots if s.owned)
        if held > self.max_cache_tokens:
            raise EngineError(f"{held} entries are owned, {self.max_cache_tokens} exist")

    def _touch(self, slot: int) -> None:
        self._clock += 1
        self._slots[slot].used = self._clock

    @staticmethod
    def _drop_staged(s: _Slot) -> None:
        s.ids, s.reserved, s.visible = [], 0, _EMPTY


def slot_runs(slots: list[int]) -> Iterator[tuple[int, int, int]]:
    """(slot, start, stop) of adjacent tokens of one slot, without padding."""
    start = 0
    for slot, run in groupby(slots):
        stop = start + len(list(run))
        if slot >= 0:
            yield slot, start, stop
        start = stop


def _add_visible(visible: np.ndarray, entries: list[int], parents: list[int], size: int) -> np.ndarray:
    """Visibility after these entries are staged: an entry attends to itself and to whatever its parent attends to."""
    if not len(visible) and entries == list(range(size)) and parents == list(range(-1, size - 1)):
        return np.tri(size, dtype=bool)
    if size > len(visible) or visible is _SINGLE:  # _SINGLE is shared by all slots and never written to
        size = max(size, len(visible))
        grown = np.zeros((size, size), dtype=bool)
        grown[: len(visible), : len(visible)] = visible
        visible = grown
    for entry, parent in zip(entries, parents, strict=True):
        visible[entry] = visible[parent] if parent >= 0 else False
        visible[entry, entry] = True
    return visible

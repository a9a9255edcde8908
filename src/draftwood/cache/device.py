"""DeviceCache: a dense cache whose staged tokens stay on the device; the host counts them and never reads them.

slots 0 .. n-1, and one more that padding writes to
entries 0 .. capacity-1, and one more that tokens without room write to; no text reads either
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.cache.dense import DenseCache
from draftwood.core.forward import CacheSpec
from draftwood.core.host import put
from draftwood.errors import EngineError, ModelError


class DeviceCache(DenseCache):
    """The runner writes staged entries and calls `note` with their number; a commit moves all of them in one operation."""

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
        recurrent = [s.name for s in specs if s.per_slot]
        if recurrent:
            raise ModelError(
                f"per-slot states are not kept on an accelerator: {', '.join(recurrent)}\nhint: run this model on the CPU"
            )
        super().__init__(
            specs,
            slots=slots + 1,
            capacity=capacity + 1,
            max_cache_tokens=slots * capacity if max_cache_tokens is None else max_cache_tokens,
            device=device,
            pools=pools,
        )
        self.slots, self.capacity = slots, capacity
        self.padding = slots  # the slot of padding

    @property
    def room(self) -> int:
        """Entries of a slot that can be read now. Tokens without room write to the one behind them."""
        return self._allocated - 1

    def pair(self, layer: int) -> Tensor:
        """Keys and values of one layer: [2, slots, heads, entries, width]."""
        return self.pairs(range(layer, layer + 1))[0]

    def places(self, slots: Int[Tensor, "B W"], entries: Int[Tensor, "B W"]) -> Int[Tensor, "n"]:
        """Where the entries of tokens lie in a `pair` viewed as [-1, width]: of every token its keys, then its values."""
        _, count, heads, capacity, _ = self.pair(0).shape
        head = torch.arange(heads, device=self.device)
        keys = (slots[..., None] * heads + head) * capacity + entries[..., None]
        return torch.cat([keys, keys + count * heads * capacity], dim=-1).flatten()

    def read(
        self, pairs: Tensor, slots: Int[Tensor, "B"], first: int, context: int
    ) -> tuple[Float[Tensor, "g B heads context d"], Float[Tensor, "g B heads context d"]]:
        """Keys and values of the first entries of these slots, from `pairs` of some layers. `first`: the first slot, if they
        are consecutive, whose entries are then read in place; else -1."""
        if first < 0:
            found = pairs[..., :context, :].index_select(2, slots)
        else:
            found = pairs[:, :, first : first + slots.shape[0], :, :context]
        return found[:, 0], found[:, 1]

    def ready(self) -> None:
        """Called before a pass, after all of its slots are noted."""

    def note(self, slot: int, staged: int) -> bool:
        """A pass is about to write staged entries up to `staged`, those without room left out. Whether the stores moved."""
        s = self._slots[slot]
        if not s.owned:
            raise EngineError(f"slot {slot} is written without being admitted")
        before, end = self._allocated, min(len(s.text) + staged, self.capacity)
        self._grow(end + 1)
        moved = self._allocated != before
        if moved:  # the entry for tokens without room is now an entry like others
            for joined in self._joined.values():
                joined[:, :, :, before - 1] = 0
        s.ids += [-1] * (staged - len(s.ids))
        s.written = max(s.written, end)
        self._touch(slot)
        return moved

    def admit(self, slot: int, tokens: Sequence[int], most: int | None = None, before: Sequence[int] = ()) -> int:
        """As in DenseCache. Entries of the last text become zeros: they are only masked, and NaN times zero is NaN."""
        size = super().admit(slot, tokens, most, before)
        self._zero(slot, size)
        return size

    def keep(self, slots: Sequence[int], entries: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]) -> None:
        """Commit: keep these staged entries in this order, drop the rest."""
        moves: list[list[tuple[int, int]]] = []  # from, to
        for slot, kept, text in zip(slots, entries, tokens, strict=True):
            s, base = self._slots[slot], self.length(slot)
            if kept and max(kept) >= len(s.ids):
                raise EngineError(f"slot {slot} has {len(s.ids)} staged entries, asked for {list(kept)}")
            moves.append([(base + e, base + i) for i, e in enumerate(kept) if e != i])
            s.text += text
            self._drop_staged(s)
        if any(moves):
            self._move(slots, moves)

    def _move(self, slots: Sequence[int], moves: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Entries of each slot, in all stores: all are read before one is written."""
        flat = [(slot, *move) for slot, each in zip(slots, moves, strict=True) for move in each]
        slot, source, to = put(list(zip(*flat, strict=True)), self.device).unbind(0)
        for joined in self._joined.values():
            joined[:, slot, :, to] = joined[:, slot, :, source]

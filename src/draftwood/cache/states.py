"""SlotStates: the states of recurrent layers, one per slot, and one after each staged token.

    committed   [slots, heads, width]            after the whole committed text; zeros before the first token
    staged      [slots, staged, heads, width]    after staged entry e, so that a rule may keep any path

A layer reads the state of a token's parent and writes the state after the token. Committing a path copies the state of its
last entry. A committed state belongs to the end of its text; states of earlier positions are not kept.
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from draftwood.core.forward import CacheSpec
from draftwood.core.host import put
from draftwood.errors import EngineError


class SlotStates:
    """The stores of a cache whose specs have `per_slot`."""

    def __init__(self, specs: Sequence[CacheSpec], slots: int, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.committed = {s.name: torch.zeros(slots, s.heads, s.width, dtype=s.dtype, device=device) for s in specs}
        self.staged = {name: x[:, None].clone() for name, x in self.committed.items()}
        self._tokens = [0] * slots  # how many tokens each committed state has read

    def grow(self, staged: int) -> None:
        """Room for the states after so many staged tokens. It doubles, because trees come in many sizes."""
        have = next(iter(self.staged.values())).shape[1]
        if staged > have:
            more = max(staged, 2 * have) - have
            self.staged = {name: pad(x, (0, 0, 0, 0, 0, more)) for name, x in self.staged.items()}

    def start(self, slot: int, source: int, tokens: int) -> None:
        """Begin a text in a slot: with the `tokens` tokens that the state of `source` has read, or with none."""
        if tokens and tokens != self._tokens[source]:
            raise EngineError(f"slot {source}: a state after {self._tokens[source]} tokens is asked for after {tokens}")
        for x in self.committed.values():
            if not tokens:
                x[slot] = 0
            elif source != slot:
                x[slot] = x[source]
        self._tokens[slot] = tokens

    def keep(self, slots: Sequence[int], entries: Sequence[Sequence[int]]) -> None:
        """Commit the state after the last entry kept. A slot that keeps no entry keeps its committed state."""
        kept = [(slot, each[-1]) for slot, each in zip(slots, entries, strict=True) if each]
        if not kept:
            return
        slot, last = put(list(zip(*kept, strict=True)), self.device).unbind(0)
        for name, x in self.committed.items():
            x[slot] = self.staged[name][slot, last]
        for each, path in zip(slots, entries, strict=True):
            self._tokens[each] += len(path)

    def check(self, slot: int, tokens: int) -> None:
        """EngineError if the committed state is not that of a text of so many tokens."""
        if self._tokens[slot] != tokens:
            raise EngineError(f"slot {slot} holds {tokens} entries and a state after {self._tokens[slot]} tokens")


def check_order(slot: int, entries: Sequence[int], parents: Sequence[int], staged: Sequence[int]) -> None:
    """EngineError if a token stands before its parent, whose state it needs. `staged`: tokens of the slot's staged entries,
    -1 where there is none."""
    place = {entry: i for i, entry in enumerate(entries)}
    for i, (entry, parent) in enumerate(zip(entries, parents, strict=True)):
        known = parent < 0 or (place[parent] < i if parent in place else parent < len(staged) and staged[parent] >= 0)
        if not known:
            raise EngineError(f"slot {slot}: entry {entry} stands before entry {parent}, which it follows")

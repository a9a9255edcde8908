"""Batches of dialogues: a pure function of data, seed and step, so a resumed run sees what an unbroken one would."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftwood.errors import TrainError
from draftwood.train.data.dialogues import Dialogue

_POOL = 4096  # dialogues sorted by length together: little padding, and still a shuffle
_ROUND = 64  # lengths are multiples of this, so that few shapes exist


_Row = tuple[int, ...]
"""Places in the data whose dialogues make one row."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Padded on the right. `numbers` are places in the data, to name a batch in an error."""

    ids: Tensor  # [B, T]
    answer: Tensor
    live: Tensor
    numbers: tuple[int, ...]


class Batches:
    """About `tokens` positions a batch, padding included. Dialogues longer than `longest` are cut at the end.

    `join`: a row holds several dialogues, one behind the other as one long conversation. What is learned from is the
    target's distribution in that very context, so it stays true; and most dialogues are short, so without it nobody would learn
    what to do far into a long one.
    """

    def __init__(
        self, dialogues: Sequence[Dialogue], *, tokens: int, longest: int = 1024, seed: int = 0, join: bool = False
    ) -> None:
        self.dialogues, self.tokens, self.longest, self.seed, self.join = dialogues, tokens, longest, seed, join
        # What is cut off must not be all that was to be learned.
        self.usable = [i for i, d in enumerate(dialogues) if d.answers and d.answers[0][0] < longest - 2]
        if not self.usable:
            raise TrainError(
                f"none of {len(dialogues)} dialogues has an answer within {longest} tokens\n"
                "hint: make data with `draftwood train data`"
            )
        self._epoch: tuple[int, list[list[_Row]]] = (-1, [])
        self._sizes: list[int] = []

    def at(self, step: int) -> Batch:
        """The batch of one step. Epochs differ in their number of batches, so walk to the one that holds it."""
        epoch = 0
        while step >= self._size(epoch):
            step -= self._size(epoch)
            epoch += 1
        return self._batch(self._plan(epoch)[step])

    def _size(self, epoch: int) -> int:
        if epoch == len(self._sizes):
            self._sizes.append(len(self._plan(epoch)))
        return self._sizes[epoch]

    def _plan(self, epoch: int) -> list[list[_Row]]:
        if self._epoch[0] == epoch:
            return self._epoch[1]
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(np.array(self.usable)).tolist()
        rows = self._joined(order) if self.join else [(i,) for i in order]
        batches: list[list[_Row]] = []
        for at in range(0, len(rows), _POOL):
            batch: list[_Row] = []
            for row in sorted(rows[at : at + _POOL], key=self._length):
                if batch and (len(batch) + 1) * self._length(row) > self.tokens:
                    batches.append(batch)
                    batch = []
                batch.append(row)
            batches.append(batch)
        plan = [batches[i] for i in rng.permutation(len(batches))]
        self._epoch = epoch, plan
        return plan

    def _joined(self, order: list[int]) -> list[_Row]:
        """In their order, as many to a row as are whole in it."""
        rows: list[_Row] = []
        room = 0
        for i in order:
            size = len(self.dialogues[i].tokens)
            if size <= room:
                rows[-1] = (*rows[-1], i)
                room -= size
            else:
                rows.append((i,))
                room = self.longest - size
        return rows

    def _length(self, row: _Row) -> int:
        size = min(sum(len(self.dialogues[i].tokens) for i in row), self.longest)
        return -(-size // _ROUND) * _ROUND

    def _batch(self, rows: list[_Row]) -> Batch:
        ids = np.zeros((len(rows), max(map(self._length, rows))), dtype=np.int64)
        answer, live = np.zeros_like(ids, dtype=bool), np.zeros_like(ids, dtype=bool)
        for at, row in enumerate(rows):
            first = 0
            for d in (self.dialogues[i] for i in row):
                size = min(len(d.tokens), self.longest - first)
                ids[at, first : first + size] = d.tokens[:size]
                for start, stop in d.answers:
                    answer[at, first + start : first + min(stop, size)] = True
                first += size
            live[at, :first] = True
        numbers = tuple(i for row in rows for i in row)
        return Batch(torch.from_numpy(ids), torch.from_numpy(answer), torch.from_numpy(live), numbers)

"""Batches of dialogues: a pure function of data, seed and step, so a resumed run sees what an unbroken one would."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftwood.errors import TrainError

_POOL = 4096  # dialogues sorted by length together: little padding, and still a shuffle
_ROUND = 64  # lengths are multiples of this, so that few shapes exist


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Padded on the right. `numbers` are places in the data, to name a batch in an error."""

    ids: Tensor  # [B, T]
    answer: Tensor
    live: Tensor
    numbers: tuple[int, ...]

    def to(self, device: torch.device | str) -> "Batch":
        ids, answer, live = (x.to(device, non_blocking=True) for x in (self.ids, self.answer, self.live))
        return Batch(ids, answer, live, self.numbers)


class Batches:
    """About `tokens` positions a batch, padding included. Dialogues longer than `longest` are cut at the end."""

    def __init__(self, dialogues: Sequence, *, tokens: int, longest: int = 1024, seed: int = 0) -> None:
        self.dialogues, self.tokens, self.longest, self.seed = dialogues, tokens, longest, seed
        # What is cut off must not be all that was to be learned.
        self.usable = [i for i, d in enumerate(dialogues) if d.answers and d.answers[0][0] < longest - 2]
        if not self.usable:
            raise TrainError(
                f"none of {len(dialogues)} dialogues has an answer within {longest} tokens\n"
                "hint: make data with `draftwood train data`"
            )
        self._epoch: tuple[int, list[list[int]]] = (-1, [])
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

    def _plan(self, epoch: int) -> list[list[int]]:
        if self._epoch[0] == epoch:
            return self._epoch[1]
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(np.array(self.usable))
        batches: list[list[int]] = []
        for at in range(0, len(order), _POOL):
            pool = sorted(order[at : at + _POOL].tolist(), key=self._length)
            batch: list[int] = []
            for i in pool:
                if batch and (len(batch) + 1) * self._length(i) > self.tokens:
                    batches.append(batch)
                    batch = []
                batch.append(i)
            batches.append(batch)
        plan = [batches[i] for i in rng.permutation(len(batches))]
        self._epoch = epoch, plan
        return plan

    def _length(self, i: int) -> int:
        size = min(len(self.dialogues[i].tokens), self.longest)
        return -(-size // _ROUND) * _ROUND

    def _batch(self, numbers: list[int]) -> Batch:
        length = max(self._length(i) for i in numbers)
        ids = np.zeros((len(numbers), length), dtype=np.int64)
        answer, live = np.zeros_like(ids, dtype=bool), np.zeros_like(ids, dtype=bool)
        for row, i in enumerate(numbers):
            d = self.dialogues[i]
            size = min(len(d.tokens), self.longest)
            ids[row, :size] = d.tokens[:size]
            live[row, :size] = True
            for start, stop in d.answers:
                answer[row, start : min(stop, size)] = True
        return Batch(torch.from_numpy(ids), torch.from_numpy(answer), torch.from_numpy(live), tuple(numbers))

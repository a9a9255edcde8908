"""Batches of dialogues: a pure function of data, seed and step, so that a resumed run trains on the same batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftwood.errors import TrainError
from draftwood.train.data.dialogues import Dialogue

_POOL = 4096  # sequences sorted by length together: little padding, and still a shuffle
_ROUND = 64  # lengths are multiples of this, so that there are few shapes

_Sequence = tuple[int, ...]  # indices of the dialogues that make up one sequence


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Padded on the right. `numbers` are the indices of its dialogues, for error messages."""

    ids: Tensor  # [B, T]
    answer: Tensor
    live: Tensor
    numbers: tuple[int, ...]


class Batches:
    """About `tokens` positions a batch, padding included. Dialogues longer than `longest` are truncated.

    `join`: a sequence holds several dialogues, one after the other, as one long conversation. The target computes its
    distributions in that same context, so they remain valid training targets. Most dialogues are short, and without
    joining no drafter is trained on high positions.
    """

    def __init__(
        self, dialogues: Sequence[Dialogue], *, tokens: int, longest: int = 1024, seed: int = 0, join: bool = False
    ) -> None:
        self.dialogues, self.tokens, self.longest, self.seed, self.join = dialogues, tokens, longest, seed, join
        # A dialogue without an answer in its first `longest` tokens trains nothing.
        self.usable = [i for i, d in enumerate(dialogues) if d.answers and d.answers[0][0] < longest - 2]
        if not self.usable:
            raise TrainError(
                f"none of {len(dialogues)} dialogues has an answer within {longest} tokens\n"
                "hint: make data with `draftwood train data`"
            )
        self._epoch: tuple[int, list[list[_Sequence]]] = (-1, [])
        self._sizes: list[int] = []

    def at(self, step: int) -> Batch:
        """The batch of one step. Epochs differ in their number of batches."""
        epoch = 0
        while step >= self._size(epoch):
            step -= self._size(epoch)
            epoch += 1
        return self._batch(self._plan(epoch)[step])

    def _size(self, epoch: int) -> int:
        if epoch == len(self._sizes):
            self._sizes.append(len(self._plan(epoch)))
        return self._sizes[epoch]

    def _plan(self, epoch: int) -> list[list[_Sequence]]:
        if self._epoch[0] == epoch:
            return self._epoch[1]
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(np.array(self.usable)).tolist()
        sequences = self._joined(order) if self.join else [(i,) for i in order]
        batches: list[list[_Sequence]] = []
        for at in range(0, len(sequences), _POOL):
            batch: list[_Sequence] = []
            for sequence in sorted(sequences[at : at + _POOL], key=self._length):
                if batch and (len(batch) + 1) * self._length(sequence) > self.tokens:
                    batches.append(batch)
                    batch = []
                batch.append(sequence)
            batches.append(batch)
        plan = [batches[i] for i in rng.permutation(len(batches))]
        self._epoch = epoch, plan
        return plan

    def _joined(self, order: list[int]) -> list[_Sequence]:
        """As many dialogues to a sequence as fit into it whole, in order."""
        sequences: list[_Sequence] = []
        room = 0
        for i in order:
            size = len(self.dialogues[i].tokens)
            if size <= room:
                sequences[-1] = (*sequences[-1], i)
                room -= size
            else:
                sequences.append((i,))
                room = self.longest - size
        return sequences

    def _length(self, sequence: _Sequence) -> int:
        size = min(sum(len(self.dialogues[i].tokens) for i in sequence), self.longest)
        return -(-size // _ROUND) * _ROUND

    def _batch(self, sequences: list[_Sequence]) -> Batch:
        ids = np.zeros((len(sequences), max(map(self._length, sequences))), dtype=np.int64)
        answer, live = np.zeros_like(ids, dtype=bool), np.zeros_like(ids, dtype=bool)
        for b, sequence in enumerate(sequences):
            first = 0
            for d in (self.dialogues[i] for i in sequence):
                size = min(len(d.tokens), self.longest - first)
                ids[b, first : first + size] = d.tokens[:size]
                for start, stop in d.answers:
                    answer[b, first + start : first + min(stop, size)] = True
                first += size
            live[b, :first] = True
        numbers = tuple(i for sequence in sequences for i in sequence)
        return Batch(torch.from_numpy(ids), torch.from_numpy(answer), torch.from_numpy(live), numbers)

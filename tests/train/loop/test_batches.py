"""Batches are a function of data, seed and step; each usable dialogue comes once an epoch, with little padding."""

import numpy as np
import pytest
import torch

from draftwood.errors import TrainError
from draftwood.train.data.dialogues import Dialogue
from draftwood.train.loop.batches import Batches
from tiny_run import dialogues


def same(a, b) -> bool:
    return a.numbers == b.numbers and all(torch.equal(getattr(a, k), getattr(b, k)) for k in ("ids", "answer", "live"))


def epochs(batches: Batches, count: int) -> list[list[tuple[int, ...]]]:
    """Numbers of the first batches, cut into epochs where every dialogue has come."""
    found: list[list[tuple[int, ...]]] = []
    step = 0
    for _ in range(count):
        left, own = set(batches.usable), []
        while left:
            own.append(batches.at(step).numbers)
            assert set(own[-1]) <= left, "none twice before all have come"
            left -= set(own[-1])
            step += 1
        found.append(own)
    return found


def test_each_usable_dialogue_comes_once_an_epoch_and_epochs_differ() -> None:
    batches = Batches(dialogues(50), tokens=256, seed=1)
    one, two, three = epochs(batches, 3)
    assert one != two != three and len(one) > 5


def test_step_alone_decides() -> None:
    """A resumed run asks a new object for any step, in any order."""
    made = dialogues(40)
    walked = Batches(made, tokens=256, seed=3)
    there = [walked.at(step) for step in range(60)]
    for step in (59, 0, 31, 7, 58):
        assert same(Batches(made, tokens=256, seed=3).at(step), there[step])
        assert same(walked.at(step), there[step])
    assert not all(same(Batches(made, tokens=256, seed=4).at(step), there[step]) for step in range(5))


def test_padding_is_bounded() -> None:
    made = dialogues(400, longest=300)
    batches = Batches(made, tokens=2048, seed=0)
    size = sum(len(epoch) for epoch in epochs(batches, 1))
    shapes = [batches.at(step) for step in range(size)]
    assert all(b.ids.numel() <= 2048 and not b.ids.shape[1] % 64 for b in shapes)
    live = sum(int(b.live.sum()) for b in shapes)
    assert live / sum(b.ids.numel() for b in shapes) > 0.75


def test_masks_say_what_the_target_wrote_and_what_is_padding() -> None:
    d = Dialogue(np.arange(10, 40, dtype=np.int32), ((3, 5), (20, 30)))
    batch = Batches([d], tokens=64).at(0)
    assert batch.ids.shape == (1, 64)
    assert batch.live[0].nonzero()[:, 0].tolist() == list(range(30))
    assert batch.answer[0].nonzero()[:, 0].tolist() == [3, 4, *range(20, 30)]
    assert batch.ids[0, :30].tolist() == list(range(10, 40)) and not batch.ids[0, 30:].any()


def test_long_dialogues_are_cut_and_those_without_an_answer_left_are_no_use() -> None:
    cut = Dialogue(np.arange(50, dtype=np.int32), ((3, 50),))
    late = Dialogue(np.arange(50, dtype=np.int32), ((19, 50),))
    batches = Batches([cut, late], tokens=64, longest=20)
    assert batches.usable == [0]
    batch = batches.at(0)
    assert int(batch.live.sum()) == 20 and int(batch.answer.sum()) == 17
    with pytest.raises(TrainError, match="none of 1 dialogues has an answer within 20 tokens"):
        Batches([late], tokens=64, longest=20)


def test_joined_sequences_hold_whole_dialogues_one_after_another() -> None:
    made = dialogues(60)
    batches = Batches(made, tokens=512, longest=256, seed=2, join=True)
    one, two = epochs(batches, 2)
    assert one != two
    for step in range(len(one)):
        batch = batches.at(step)
        left = list(batch.numbers)
        for ids, answer, live in zip(batch.ids, batch.answer, batch.live, strict=True):
            size, at = int(live.sum()), 0
            assert bool(live[:size].all()) and size <= 256
            while at < size:
                d = made[left.pop(0)]
                assert ids[at : at + len(d.tokens)].tolist() == d.tokens.tolist()
                spans = {at + i for start, stop in d.answers for i in range(start, stop)}
                assert {at + i for i in answer[at : at + len(d.tokens)].nonzero()[:, 0].tolist()} == spans
                at += len(d.tokens)
            assert at == size
        assert not left
    rows = [len(b.ids) for b in map(batches.at, range(len(one)))]
    assert sum(rows) < 60, "several to a row"

"""What waits before the later parts of a model: paths through it, and what a commit leaves of it."""

import torch

from draftwood.runners.waiting import COMMITTED, Waiting, fresh

HIDDEN = torch.zeros(2)


def chain(waiting: Waiting, ids: list[int], first: int = 0) -> None:
    for i, each in enumerate(ids):
        waiting.stage(first + i, first + i - 1, each, 10 + first + i, HIDDEN)


def run(waiting: Waiting, entry: int, part: int) -> list[int]:
    """The ids that a part has to run for a staged token."""
    path = waiting.path(waiting.staged[entry], part)
    for token in path:
        token.entries.append(waiting.next_entry(part))
    return [token.id for token in path]


def test_a_token_takes_along_its_ancestors_and_nobody_else() -> None:
    """5 ─ 6 ─ 7
    └ 8"""
    waiting = Waiting()
    chain(waiting, [5, 6, 7])
    waiting.stage(3, 0, 8, 11, HIDDEN)
    assert run(waiting, 1, 1) == [5, 6] and run(waiting, 3, 1) == [8], "5 has been there"
    assert run(waiting, 3, 2) == [5, 8] and run(waiting, 2, 1) == [7]
    assert [waiting.staged[entry].entries for entry in range(4)] == [[0, 0, 0], [1, 1], [2, 3], [3, 2, 1]]


def test_after_a_commit_the_accepted_wait_and_the_rejected_are_gone() -> None:
    waiting = Waiting()
    chain(waiting, [5, 6, 7, 8])
    assert run(waiting, 1, 1) == [5, 6] and run(waiting, 0, 2) == [5]
    text = waiting.kept([0, 1, 2])  # 8 is rejected
    assert [fresh(text, part) for part in (1, 2)] == [([0, 1], [5, 6]), ([0], [5])]
    waiting.commit(text, parts=3)
    assert [(token.id, token.entries) for token in waiting.text] == [(6, [COMMITTED] * 2), (7, [COMMITTED])]
    assert [waiting.before(part) for part in range(3)] == [0, 1, 2] and not waiting.staged
    assert waiting.text[0].parent is None and waiting.text[1].parent is waiting.text[0]
    chain(waiting, [9])
    assert run(waiting, 0, 1) == [7, 9] and run(waiting, 0, 2) == [6, 7, 9]
    text = waiting.kept([0])
    assert [fresh(text, part) for part in (1, 2)] == [([0, 1], [7, 9]), ([0, 1, 2], [6, 7, 9])]
    waiting.commit(text, parts=3)
    assert not waiting.text

"""A draft model judges a draft in one pass, as it would judge it token by token, and forgets what it rejects."""

import math

import pytest

from draftwood.core.limit import Limit
from draftwood.core.round import Round
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.review import Reviewed, Reviewer
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.contracts import toy_round
from draftwood.testing.parts.table_model import TableModel
from draftwood.testing.parts.tiny import tiny_runner

LIMIT = Limit.of([12, 12], [12, 12])


def cyclic(text: tuple[int, ...]) -> list[float]:
    """After t comes t + 1 of 5 with 0.6, t + 2 with 0.3."""
    steps = {1: 0.6, 2: 0.3}
    return [steps.get((token - text[-1]) % 5, 0.1 / 3) for token in range(5)]


def reviewed(lenience: float, draft: list[int]) -> Reviewed:
    model = DraftModel(CpuRunner(TableModel(5, cyclic)))
    rnd = toy_round([[0]], 5, temperature=0.0)
    return model.reviews(model.init(1), rnd, Limit.of([9], [9]), lenience).review([(0, [], draft)])[0]


def test_a_draft_model_is_a_reviewer() -> None:
    assert isinstance(DraftModel(tiny_runner(1)), Reviewer)


def test_lenience_decides_what_is_accepted() -> None:
    draft = [1, 3, 4, 0, 3, 4]  # 1, then 3 instead of 2, then 4 and 0, then 3 instead of 1
    assert reviewed(1.0, draft).tokens == [1, 2]
    assert reviewed(3.0, draft).tokens == [1, 2], "0.3 is less than 1 / 3"
    lenient = reviewed(4.0, draft)
    assert lenient.tokens == [1, 3, 4, 0, 1] and lenient.accepted == 4
    assert [math.exp(x) for x in lenient.logs] == pytest.approx([0.6, 0.3, 0.6, 0.6, 0.6])


def test_a_whole_draft_that_is_accepted_gets_one_token_more() -> None:
    assert reviewed(1.0, [1, 2, 3]).tokens == [1, 2, 3, 4]
    assert reviewed(1.0, []).tokens == [1]


def alone(model: CpuRunner, rnd: Round, b: int, path: list[int]) -> int:
    """The model's own token behind a path, by a fresh cache."""
    part = rnd.take([b])
    fresh = DraftModel(model)
    return fresh.reviews(fresh.init(8), part, Limit.of([12], [12]), 1.0).review([(0, path, [])])[0].tokens[0]


def test_later_reviews_see_accepted_tokens_only() -> None:
    model = tiny_runner(4)
    rnd = toy_round([[1, 2, 3], [7, 8]], 61, temperature=0.0)
    drafter = DraftModel(model)
    reviews = drafter.reviews(drafter.init(2), rnd, LIMIT, 1.0)
    paths: list[list[int]] = [[], []]
    for turn in range(4):
        drafts = [[5] * (turn + 1), [alone(model, rnd, 1, paths[1]), 9, 9]]
        found = reviews.review([(b, paths[b], drafts[b]) for b in (0, 1)])
        for b in (0, 1):
            for token in found[b].tokens:
                assert token == alone(model, rnd, b, paths[b]), "each is the model's own token after the path"
                paths[b].append(token)
    assert reviews.passes == 4 and len(paths[1]) == 8
    back = paths[1][:3]
    (again,) = reviews.review([(1, back, [])])
    assert again.tokens == [alone(model, rnd, 1, back)], "a path may go back, as after a review by a larger model"


def test_a_draft_without_room_leaves_nothing() -> None:
    drafter = DraftModel(tiny_runner(4))
    rnd = toy_round([[1, 2, 3]], 61)
    reviews = drafter.reviews(drafter.init(1), rnd, Limit.of([1], [1]), 1.0)
    assert reviews.review([(0, [], [4] * 20)])[0].tokens == [] and reviews.passes == 0

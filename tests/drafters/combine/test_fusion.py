"""A model's chain and retrieved nodes share the places of a pass by their chances."""

import random

import pytest

from draftwood.drafters.combine.fusion import Drafted, beside_unseen, fused, joined
from draftwood.drafters.retrieval.retrieved import NOTHING, Retrieved

CHEAP = [1.0 + 0.01 * n for n in range(20)]
DEAR = [1.0 + 0.9 * n for n in range(20)]


def paths(found: Retrieved | Drafted) -> list[tuple[int, ...]]:
    known: list[tuple[int, ...]] = [()]
    for token, parent in zip(found.tokens, found.parents, strict=True):
        known.append((*known[parent], token))
    return known[1:]


def chain(tokens: list[int], chances: list[float]) -> Drafted:
    size = len(tokens)
    return Drafted(tokens, list(range(size)), chances, chances, [0] * size, size)


def test_a_cheap_pass_takes_all_and_a_dear_one_nothing() -> None:
    drafted, found = chain([1, 2, 3], [0.9, 0.8, 0.7]), Retrieved([5, 6], [0, 1], [-0.1, -0.2])
    both = fused(drafted, found, [0.9, 0.9], CHEAP, 0.0)
    assert both.drafted.tokens == [1, 2, 3] and paths(both.found) == [(5,), (5, 6)]
    none = fused(drafted, found, [0.9, 0.9], DEAR, 0.0)
    assert len(none.drafted.tokens) + len(none.found.tokens) <= 1


def test_what_the_model_is_sure_of_leaves_no_room_for_another_token() -> None:
    seconds = [1.0 + 0.1 * n for n in range(20)]
    found = Retrieved([5], [0], [-0.1])
    assert fused(chain([1], [0.99]), found, [0.9], seconds, 0.0).found is NOTHING
    assert fused(chain([1], [0.3]), found, [0.9], seconds, 0.0).found.tokens == [5]


def test_a_copy_goes_on_behind_the_chain() -> None:
    both = fused(chain([1, 2], [0.9, 0.9]), Retrieved([1, 2, 7], [0, 1, 2], [-0.1, -0.2, -0.3]), [0.9] * 3, CHEAP, 0.0)
    assert both.drafted.tokens == [1, 2] and paths(both.found) == [(1,), (1, 2), (1, 2, 7)], "with the nodes above it"


@pytest.mark.parametrize("seed", range(30))
def test_what_is_kept_is_closed_under_parents_and_never_more_than_has_a_cost(seed: int) -> None:
    rng = random.Random(seed)
    drafted = chain([rng.randrange(3) for _ in range(4)], [rng.random() for _ in range(4)])
    leaves = [(node, 3) for node in range(4) if rng.random() < 0.5]  # beside the chain
    drafted = Drafted(
        drafted.tokens + [token for _, token in leaves],
        drafted.parents + [parent for parent, _ in leaves],
        drafted.said + [0.1] * len(leaves),
        drafted.chances + [0.1] * len(leaves),
        drafted.ranks + [1] * len(leaves),
        4,
    )
    own: dict[tuple[int, int], int] = {}
    for _ in range(8):
        own.setdefault((rng.randrange(len(own) + 1), rng.randrange(3)), 0)
    found = Retrieved([t for _, t in own], [p for p, _ in own], [-float(i) for i in range(len(own))])
    seconds = [1.0 + 0.05 * n for n in range(rng.randrange(1, 9))]
    both = fused(drafted, found, [rng.random() for _ in own], seconds, rng.random())
    own_paths, kept = set(paths(both.drafted)), set(paths(both.found))
    assert own_paths <= set(paths(drafted)) and all(path[:-1] in own_paths | {()} for path in own_paths)
    assert kept <= set(paths(found)) and all(path[:-1] in kept | {()} for path in kept)
    assert len(own_paths | kept) <= len(seconds) - 1
    tokens, parents, score, source = joined(both.drafted, both.found, (7, 0))
    assert set(paths(Retrieved(tokens, parents, score))) == own_paths | kept and len(tokens) == len(own_paths | kept)
    assert all(score[i] <= ([0.0, *score][parent]) for i, parent in enumerate(parents))
    assert source.count(7) == len(own_paths)


def test_beside_a_draft_nobody_has_looked_at_only_what_pays() -> None:
    found = Retrieved([5, 6], [0, 1], [-0.1, -0.2])
    assert beside_unseen(found, 2.0, CHEAP, 0.1) == found
    assert beside_unseen(found, 2.0, DEAR, 0.1) is NOTHING
    assert beside_unseen(NOTHING, 2.0, CHEAP, 0.1) is NOTHING

"""Places that agree share their nodes, and where they disagree they share the chance."""

import math

import pytest

from draftwood.drafters.retrieval.merged import Place, merge
from draftwood.drafters.retrieval.retrieved import NOTHING


def test_shared_tokens_are_drafted_once_and_chances_follow_the_weights() -> None:
    found = merge([Place([1, 2, 3], 3.0, 5), Place([1, 2, 4], 1.0, 2)], 9, lambda match: math.log(match / 10))
    assert (found.tokens, found.parents) == ([1, 2, 3, 4], [0, 1, 2, 2])
    assert found.chances() == pytest.approx([0.5, 0.6, 0.7 * 3 / 4, 0.4 * 1 / 4])


def test_a_place_where_nothing_follows_takes_its_share() -> None:
    found = merge([Place([], 1.0, 9), Place([1], 1.0, 9)], 9, lambda match: 0.0)
    assert found.chances() == pytest.approx([0.5])


def test_the_best_nodes_are_kept_and_no_place_is_no_draft() -> None:
    places = [Place([1, 2, 3], 3.0, 5), Place([4], 1.0, 5)]
    assert merge(places, 2, lambda match: -0.1).tokens == [1, 2]
    assert merge([], 5, lambda match: 0.0) is NOTHING

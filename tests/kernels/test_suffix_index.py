"""Counts are those of the texts, and a draft follows them by the rule, in plain Python and compiled alike."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.kernels.cpu.suffix_index import NativeIndex
from draftwood.kernels.suffix_index import DraftRule, PlainIndex, SuffixDraft, SuffixIndex
from native_levels import BEST, opened

DEPTH = 5
Make = Callable[[int], SuffixIndex]
either = pytest.mark.parametrize("make", [PlainIndex, lambda depth: NativeIndex(opened(BEST), depth)])

# What happens to an index: tokens are appended to a sequence, or (None) a sequence is removed.
tokens = st.integers(2, 4).flatmap(lambda letters: st.lists(st.integers(0, letters - 1), max_size=9))
events = st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), tokens)), max_size=12)


def run(index: SuffixIndex, happened: list[tuple[int, list[int] | None]]) -> dict[int, list[int]]:
    """The texts that are left."""
    texts: dict[int, list[int]] = {}
    for sequence, new in happened:
        if new is None:
            index.remove(sequence)
            texts.pop(sequence, None)
        else:
            index.append(sequence, new)
            texts.setdefault(sequence, []).extend(new)
    return texts


def substrings(texts: dict[int, list[int]], depth: int = DEPTH) -> Counter[tuple[int, ...]]:
    """Every run of at most `depth` tokens, by brute force."""
    return Counter(
        tuple(text[i : i + n]) for text in texts.values() for n in range(1, depth + 1) for i in range(len(text) + 1 - n)
    )


@either
@settings(deadline=None, max_examples=60)
@given(happened=events)
def test_counts_are_those_of_the_substrings(make: Make, happened: list[tuple[int, list[int] | None]]) -> None:
    index = make(DEPTH)
    right = substrings(run(index, happened))
    assert {run: index.count(run) for run in right} == dict(right)
    absent = [(*run, 9) for run in right] + [(*run[:-1], 3 - run[-1]) for run in right]
    assert all(index.count(run) == right[run] for run in absent)


@either
def test_what_is_too_long_or_empty_is_never_counted(make: Make) -> None:
    index = make(3)
    index.append(0, [1, 2, 3, 4])
    assert index.count([1, 2, 3]) == 1 and index.count([1, 2, 3, 4]) == 0 and index.count([]) == 0


def draft(make: Make, texts: list[list[int]], context: list[int], depth: int = 24, **rule: Any) -> SuffixDraft:
    index = make(depth)
    for sequence, text in enumerate(texts):
        index.append(sequence, text)
    return index.draft(context, DraftRule(**{"nodes": 16, "levels": 16, **rule}))


@either
def test_a_longer_match_drafts_more(make: Make) -> None:
    for match in range(1, 5):
        found = draft(make, [[1, 2, 3, 4, 5, 6, 7, 8, 9]], [1, 2, 3, 4][4 - match :])
        assert found == SuffixDraft([5, 6, 7, 8][:match], list(range(match)), [1.0] * match, float(match), match)


@either
def test_the_rule_bounds_the_draft(make: Make) -> None:
    text = [list(range(1, 20))]
    assert draft(make, text, [1, 2], factor=2.5).tokens == [3, 4, 5, 6, 7]
    assert draft(make, text, [1, 2], offset=1.9).tokens == [3, 4, 5]
    assert draft(make, text, [1, 2], offset=9, nodes=4).tokens == [3, 4, 5, 6]
    assert draft(make, text, [1, 2], factor=1e308, nodes=4).tokens == [3, 4, 5, 6], "more than any number"
    assert draft(make, text, [1, 2], offset=9, levels=3).tokens == [3, 4, 5]
    short = draft(make, text, [1, 2], offset=9, depth=6)
    assert (short.match, short.tokens) == (1, [3, 4, 5, 6, 7]), "match and draft have six tokens together"
    assert draft(make, text, [1, 2], offset=-9) == draft(make, text, [1, 2], nodes=0) == SuffixDraft()
    assert draft(make, text, [50]) == draft(make, text, []) == draft(make, [], [1]) == SuffixDraft()


@either
def test_a_path_follows_the_most_frequent_token_and_a_tree_the_most_probable_ones(make: Make) -> None:
    texts = [[1, 2, 5], [1, 2, 5], [1, 2, 6], [1, 3, 7]]
    whole: dict[str, Any] = {"factor": 0.0, "offset": 9.0}
    path = draft(make, texts, [1], **whole)
    assert (path.tokens, path.probs, path.score) == ([2, 5], [3 / 4, 3 / 4 * (2 / 3)], 1.25)
    tree = draft(make, texts, [1], tree=True, **whole)
    assert tree.tokens == [2, 5, 3, 6, 7] and tree.parents == [0, 1, 0, 1, 3]
    assert tree.probs == [3 / 4, 3 / 4 * (2 / 3), 1 / 4, 3 / 4 * (1 / 3), 1 / 4]
    assert draft(make, texts, [1], tree=True, factor=0.0, offset=2.0).tokens == [2, 5]
    assert draft(make, texts, [1], p_min=0.6, **whole).tokens == [2]
    assert draft(make, texts, [1], tree=True, p_min=0.3, **whole).tokens == [2, 5]


@either
def test_the_higher_score_wins_and_the_longer_match_among_equals(make: Make) -> None:
    more: dict[str, Any] = {"factor": 0.0, "offset": 1.0}
    assert draft(make, [[8, 1, 2], [9, 1, 3], [7, 1, 3]], [8, 1], **more).match == 2, "one of one beats two of three"
    assert draft(make, [[8, 1, 2], [9, 1, 2]], [8, 1], **more).match == 2, "a tie"
    assert draft(make, [[8, 1, 2], [8, 1], [9, 1, 2], [7, 1, 2]], [8, 1], **more).match == 1


@either
@settings(deadline=None, max_examples=40)
@given(happened=events, context=tokens, tree=st.booleans())
def test_the_score_grows_with_the_budget(
    make: Make, happened: list[tuple[int, list[int] | None]], context: list[int], tree: bool
) -> None:
    index = make(DEPTH)
    run(index, happened)
    scores = [index.draft(context, DraftRule(n, 4, 0.0, float(n), tree=tree)).score for n in range(6)]
    assert scores == sorted(scores)

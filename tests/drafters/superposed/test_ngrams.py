"""N-gram probabilities are weighted counts, in a text and in a store alike."""

from pathlib import Path

import pytest

from draftwood.drafters.superposed.ngrams import LONGEST, WEIGHTS, StoreCounts, TextCounts, mixture
from small_stores import followers, made_store

TEXT = [1, 2, 3, 1, 2, 4, 1, 2, 3, 3, 1, 2]


def counted(*parts: list[int]) -> TextCounts:
    made = TextCounts()
    for part in parts:
        made.read(part)
    return made


def scanned(text: list[int], token: int) -> float:
    """r(token) after a text whose n-grams are counted in itself, by the definition."""
    r = 0.0
    for span, weight in enumerate(WEIGHTS, 1):
        after = [rest[0] for rest in followers([text], text[-span:]) if rest]
        r += weight * after.count(token) / len(after) if after else 0.0
    return r


def test_a_mixture_weighs_the_shares_of_all_orders() -> None:
    r, known = mixture(counted(TEXT), TEXT, [3, 4, 1])
    assert r == pytest.approx([scanned(TEXT, token) for token in (3, 4, 1)])
    assert r[1] > r[0] > r[2] == 0 and known == pytest.approx(sum(WEIGHTS[:3])), (
        "'3 1 2' was followed by 4, '3 3 1 2' never"
    )


def test_a_text_read_in_parts_has_the_same_counts() -> None:
    whole, parts = counted(TEXT), counted(TEXT[:1], TEXT[1:8], [], TEXT[8:])
    for span in range(1, LONGEST + 1):
        assert whole.after(TEXT, span, [3, 4]) == parts.after(TEXT, span, [3, 4])
    assert parts.size == len(TEXT)


def test_what_a_draft_itself_holds_is_counted_too() -> None:
    draft = [9, 8, 9]
    counts = counted(TEXT)
    assert counts.after([*TEXT, *draft], 1, [8, 9], drafted=3) == (1, [1, 0])
    assert counts.after([*TEXT, *draft], 1, [8, 9]) == (0, [0, 0])
    assert mixture(counts, [*TEXT, *draft], [8], 3)[0] == [pytest.approx(WEIGHTS[0])]


def test_a_store_and_a_text_of_the_same_tokens_say_the_same(tmp_path: Path) -> None:
    store = StoreCounts(made_store(tmp_path / "s", [[*TEXT, 5]]))
    text = counted([*TEXT, 5])
    assert mixture(store, TEXT, [3, 4, 1]) == mixture(text, TEXT, [3, 4, 1])
    assert text.small and not store.small


def test_nothing_is_known_after_a_new_token_and_in_an_empty_text() -> None:
    assert mixture(counted(TEXT), [7], [1, 2]) == mixture(TextCounts(), [], [1, 2]) == ([0.0, 0.0], 0.0)

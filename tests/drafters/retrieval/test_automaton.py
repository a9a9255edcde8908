"""The longest end of a list that occurs in a text and is followed by something is found where it occurs first."""

from hypothesis import given
from hypothesis import strategies as st

from draftwood.drafters.retrieval.automaton import TextAutomaton


def longest(text: list[int], path: list[int]) -> tuple[int, int]:
    """(tokens of the match, where its first occurrence ends), by search."""
    whole = text + path
    for size in range(len(whole) if path else len(whole) - 1, 0, -1):
        tail = whole[-size:]
        for start in range(len(text) - size):
            if text[start : start + size] == tail:
                return size, start + size
    return 0, 0


def some(vocab_size: int, least: int, most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, vocab_size - 1), min_size=least, max_size=most)


@given(st.sampled_from([2, 3, 8]).flatmap(lambda v: st.lists(st.tuples(some(v, 1, 6), some(v, 0, 5)), max_size=12)))
def test_it_agrees_with_a_search_however_text_and_path_grow(grown: list[tuple[list[int], list[int]]]) -> None:
    text, automaton = list[int](), TextAutomaton()
    for new, path in grown:
        text += new
        automaton.extend(new)
        match = automaton.follow(automaton.end(), path)
        size, end = longest(text, path)
        assert match.length == size
        assert automaton.after(match, 4) == (text[end : end + 4] if size else [])


def test_an_empty_text_matches_nothing() -> None:
    empty = TextAutomaton()
    assert empty.after(empty.follow(empty.end(), [1, 2]), 3) == []

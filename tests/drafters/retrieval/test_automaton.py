"""The longest end of a list that occurs in a text and is followed by something is found where it occurs first."""

import random

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


def test_it_agrees_with_a_search_however_text_and_path_grow() -> None:
    rng = random.Random(3)
    for vocab_size in (2, 3, 8):
        text, automaton = list[int](), TextAutomaton()
        for _ in range(60):
            new = [rng.randrange(vocab_size) for _ in range(rng.randrange(1, 4))]
            text += new
            automaton.extend(new)
            path = [rng.randrange(vocab_size) for _ in range(rng.randrange(5))]
            match = automaton.follow(automaton.end(), path)
            size, end = longest(text, path)
            assert match.length == size
            assert automaton.after(match, 4) == (text[end : end + 4] if size else [])


def test_an_empty_text_matches_nothing() -> None:
    empty = TextAutomaton()
    assert empty.after(empty.follow(empty.end(), [1, 2]), 3) == []

"""What the target says behind a draft becomes phrases; each can be derived again from its argmax."""

import random

from draftwood.drafters.phrases.mining import corrected, mined, text_phrases


def test_phrases_are_mined_where_the_target_agrees_with_the_rejected_end() -> None:
    chain, said = [1, 2, 3, 4, 5], [9, 3, 4, 7, 8]
    assert list(mined(chain, said, 3, 1)) == [(2, (3, 4, 7))]
    assert list(mined(chain, said, 2, 1)) == [(2, (3, 4)), (3, (4, 7))]
    assert list(mined(chain, said, 1, 4)) == [(5, (8,))]
    assert list(mined(chain, said, 2, 5)) == [] == list(mined(chain, said, 6, 0))
    assert list(mined([1, 2], [2, -1], 2, 0)) == [], "no phrase holds what is no token"


def test_every_mined_phrase_follows_from_the_targets_tokens() -> None:
    rng, found = random.Random(0), 0
    for _ in range(500):
        size, count = rng.randrange(1, 4), rng.randrange(1, 8)
        chain, said = ([rng.randrange(3) for _ in range(count)] for _ in range(2))
        for key, phrase in mined(chain, said, size, rng.randrange(count + 1)):
            found += 1
            starts = [j for j in range(count - size + 1) if chain[j] == key and tuple(said[j : j + size]) == phrase]
            assert any(list(phrase[:-1]) == chain[j + 1 : j + size] for j in starts)
    assert found > 50


def test_a_phrase_is_corrected_by_what_the_target_says_at_its_tokens() -> None:
    assert corrected((1, 2, 3), 7, [2, 9, 4]) == (7, 2, 9)
    assert corrected((5,), 7, [3]) == (7,)
    assert corrected((1, 2, 3), 7, [2, -1, -1]) is None, "not all of it was in the tree"
    assert corrected((1, 2, 3), -1, [2, 3, 4]) is None


def test_phrases_of_a_text_end_in_its_new_part() -> None:
    text = [1, 2, 3, 4, 5]
    assert list(text_phrases(text, 2, 0)) == [(1, (2, 3)), (2, (3, 4)), (3, (4, 5))]
    assert list(text_phrases(text, 2, 4)) == [(3, (4, 5))]
    assert list(text_phrases([1], 2, 0)) == []

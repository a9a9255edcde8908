"""Answers as JSON: nothing that was asked for gets lost on the way."""

from draftwood.server.answers import token_names

BYTES = {1: b"a", 2: b"\xe2\x80", 3: b"\xe2", 4: b"a", 5: b"b"}


def test_tokens_of_the_same_text_keep_a_key_each_and_the_first_keeps_the_text() -> None:
    assert token_names([1, 4, 5, 1], BYTES.__getitem__) == {1: "a", 4: "token_id:4", 5: "b"}


def test_parts_of_a_character_are_named_by_their_bytes() -> None:
    """As text both would be U+FFFD."""
    assert token_names([2, 3], BYTES.__getitem__) == {2: "bytes:\\xe2\\x80", 3: "bytes:\\xe2"}

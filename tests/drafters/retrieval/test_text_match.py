"""A text that is split into other tokens is found by its bytes, and what follows is split as the answer needs it."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from draftwood.drafters.retrieval.text_match import TextMatch, longest_suffix
from draftwood.models.loading.detokenizer import BYTE_LETTERS
from draftwood.models.loading.tokenizer import Tokenizer

MERGES = ["r e", "n a", "m e", "na me", "re name", "name d", "_ f", "l e", "i le", "_f ile", "Ġ re", "Ġ name"]


def byte_level() -> Tokenizer:
    """A token for each byte and for each merge, as GPT-2 has them."""
    letters = sorted(BYTE_LETTERS, key=BYTE_LETTERS.__getitem__)
    words = [*letters, *(merge.replace(" ", "") for merge in MERGES)]
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    backend = Backend(BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))  # type: ignore[arg-type]
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, special={}, adds_bos=None, chat=None)


def metaspace() -> Tokenizer:
    """One that puts a space before every text, as Llama 2 does."""
    words = ["▁", *"abcdefghijklmnopqrstuvwxyz_", "\n", "re", "na", "me", "name", "named", "▁re"]
    merges = [("r", "e"), ("n", "a"), ("m", "e"), ("na", "me"), ("name", "d"), ("▁", "re")]
    backend = Backend(BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)  # type: ignore[arg-type]
    return Tokenizer(backend, special={}, adds_bos=None, chat=None)


BYTES, SPACES = byte_level(), metaspace()


def ids(*pieces: str, of: Tokenizer = BYTES) -> list[int]:
    """Tokens by their texts, split as they are given."""
    vocab = of.backend.get_vocab()
    return [vocab[piece.replace(" ", "Ġ" if of is BYTES else "▁")] for piece in pieces]


def texts(tokens: Iterable[int], of: Tokenizer = BYTES) -> list[str]:
    return [of.token_text(token) for token in tokens]


def test_the_rest_of_a_split_token_is_tokenised_anew() -> None:
    prediction = ids("re", "named", "_f", "ile")
    rest = TextMatch(BYTES).rest(prediction, 0, ids("rename"), 8)
    assert rest is not None and rest.agreed == 6
    assert texts(rest.tokens) == ["d", "_file"] and rest.positions == [1, 2]


def test_at_a_boundary_the_predictions_own_tokens_go_on() -> None:
    prediction = ids("rename", "d", "_f", "ile")
    rest = TextMatch(BYTES).rest(prediction, 0, ids("re", "name"), 8)
    assert rest is not None and rest.tokens == prediction[1:] and rest.positions == [1, 2, 3]
    assert TextMatch(BYTES).rest(prediction, 0, ids("re", "name"), 2) is not None


def test_a_tokenizer_that_puts_spaces_before_texts_splits_the_rest_without_one() -> None:
    prediction = ids("re", "named", "_", of=SPACES)
    rest = TextMatch(SPACES).rest(prediction, 0, ids("re", "name", of=SPACES), 8)
    assert rest is not None and texts(rest.tokens, SPACES) == ["d", "_"]
    assert SPACES.token_text(SPACES.encode("d_")[0]).startswith(" "), "what a plain encoding begins with"


@pytest.mark.parametrize("output", [ids("r", "e"), ids("x", "y", "z", "q"), [], ids(" ", " ", " ", " ", " ")])
def test_little_or_nothing_that_agrees_is_no_match(output: list[int]) -> None:
    assert TextMatch(BYTES).rest(ids("re", "named", *[" "] * 9), 0, output, 8) is None


def test_the_place_after_the_cursor_is_taken_first_then_the_one_before_it() -> None:
    prediction = ids(*"name1 name2 name3")
    for cursor, after in ((0, "1"), (6, "2"), (7, "2"), (12, "3"), (17, "3")):
        rest = TextMatch(BYTES).rest(prediction, cursor, ids("n", "a", "m", "e"), 1)
        assert rest is not None and texts(rest.tokens) == [after], cursor


def test_a_place_inside_of_a_character_has_no_rest() -> None:
    match = TextMatch(BYTES)
    letters = BYTES.encode("namenü")
    whole = [*letters[:-2]]
    assert match.spelled("ü".encode()[1:]) == []
    assert match.spelled("aü".encode()[:2]) == ids("a"), "up to the character that is cut"
    assert match.rest(letters, 0, [*whole, letters[-2]], 4) is not None


@given(st.binary(max_size=40), st.binary(max_size=12), st.integers(0, 40))
def test_the_longest_suffix_is_that_of_a_search_that_tries_all(data: bytes, tail: bytes, cut: int) -> None:
    tail = tail + data[:cut][-5:]
    wanted = max(n for n in range(len(tail) + 1) if tail[len(tail) - n :] in data)
    assert longest_suffix(data, tail) == wanted


@given(st.text("rename_fil d", min_size=1, max_size=40), st.data())
def test_however_a_text_is_split_its_rest_is_the_rest_of_the_text(text: str, data: st.DataObject) -> None:
    """The prediction in its own tokens, the answer in single letters: any split of the same text."""
    prediction = BYTES.encode(text)
    said = data.draw(st.integers(1, len(text)))
    output = ids(*text[:said])
    rest = TextMatch(BYTES).rest(prediction, 0, output, 99)
    if rest is not None and rest.agreed == said and text.count(text[:said]) == 1:
        assert BYTES.decode([*output, *rest.tokens]) == text
        assert all(0 <= position < len(prediction) for position in rest.positions)

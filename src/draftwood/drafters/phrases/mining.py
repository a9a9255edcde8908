"""Phrases from what the target says about a draft: behind its rejected end, instead of a used phrase, and in the text."""

from collections.abc import Iterator, Sequence

from draftwood.drafters.phrases.phrases import Phrase


def mined(chain: Sequence[int], said: Sequence[int], size: int, accepted: int) -> Iterator[tuple[int, Phrase]]:
    """Phrases of `size` tokens behind rejected tokens of a chain, of which the target has said token by token that it would
    write them there.

        chain    a  b  c  d  e         accepted: a
        said     x  c  d  y  z         behind b it says c, behind c it says d, behind d it says y: b -> (c, d, y)

    `said[j]`: what the target says behind `chain[j]`.
    """
    for j in range(accepted, len(chain) - size + 1):
        if all(chain[j + k] == said[j + k - 1] for k in range(1, size)) and said[j + size - 1] >= 0:
            yield chain[j], tuple(said[j : j + size])


def corrected(phrase: Phrase, first: int, said: Sequence[int]) -> Phrase | None:
    """What the target says instead of a phrase: `first` before it, and `said` behind each of its tokens; None where it was
    not asked."""
    new = (first, *said[: len(phrase) - 1])
    return new if min(new) >= 0 else None


def text_phrases(text: Sequence[int], size: int, start: int) -> Iterator[tuple[int, Phrase]]:
    """Every run of `size` tokens that ends at `start` or later, with the token before it."""
    for end in range(max(start, size), len(text)):
        yield text[end - size], tuple(text[end - size + 1 : end + 1])

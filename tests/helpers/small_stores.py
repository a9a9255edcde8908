"""Datastores of a few documents, and what a reader of them must find: by scanning, in plain Python."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from draftwood.drafters.retrieval.stores.build import Piece, build_store
from draftwood.drafters.retrieval.stores.store import Store

TOKENIZER = "0123456789abcdef"


def made_store(
    path: Path, documents: Sequence[Sequence[int]], vocab_size: int = 8, chunk_tokens: int = 1 << 25
) -> Store:
    pieces = [Piece(np.array(document, dtype=np.int64)) for document in documents]
    build_store(path, pieces, vocab_size=vocab_size, tokenizer=TOKENIZER, chunk_tokens=chunk_tokens)
    return Store.open(path)


def followers(documents: Sequence[Sequence[int]], pattern: Sequence[int]) -> list[list[int]]:
    """What follows each occurrence of a pattern, up to the end of its document."""
    size = len(pattern)
    return [
        list(document[at + size :])
        for document in documents
        for at in range(len(document) - size + 1)
        if list(document[at : at + size]) == list(pattern)
    ]


def longest_suffix(documents: Sequence[Sequence[int]], text: Sequence[int], least: int, most: int) -> int:
    """Tokens of the longest suffix of a text that occurs in a document; 0 if none of `least` tokens does."""
    spans = [n for n in range(least, min(most, len(text)) + 1) if followers(documents, text[-n:])]
    return max(spans, default=0)


def heaviest_paths(rows: Sequence[Sequence[int]], depth: int, nodes: int) -> list[tuple[tuple[int, ...], int]]:
    """Beginnings of these continuations with their counts: heaviest, then shortest, then by token ids."""
    counts = Counter(tuple(row[: d + 1]) for row in rows for d in range(min(depth, len(row))))
    return sorted(counts.items(), key=lambda item: (-item[1], len(item[0]), item[0]))[:nodes]

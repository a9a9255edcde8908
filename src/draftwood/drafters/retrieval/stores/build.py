"""Building a datastore: tokens as they come, then a suffix array per chunk, then one rename."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from draftwood.drafters.retrieval.stores.container import HEAD, SUFFIXES
from draftwood.drafters.retrieval.stores.file_format import ChunkInfo, StoreInfo, write_ends
from draftwood.drafters.retrieval.stores.store import Store, digest_of
from draftwood.drafters.retrieval.stores.writing import replacing
from draftwood.errors import OptionError, StoreError, need_at_least

CHUNK_TOKENS = 1 << 25  # sorting takes 10 bytes of memory per token of a chunk, 20 in large vocabularies
MOST_CHUNK_TOKENS = 1 << 28
_BLOCK = 1 << 22  # suffixes filtered and written at a time

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Tokens of a document in order. `ends`: the document ends here. `answers`: [start, stop) spans of it that a target
    wrote, if it is a dialogue."""

    ids: np.ndarray
    ends: bool = True
    answers: tuple[tuple[int, int], ...] | None = None


def build_store(
    path: Path,
    pieces: Iterable[Piece],
    *,
    vocab_size: int,
    tokenizer: str,
    model: str = "",
    chunk_tokens: int = CHUNK_TOKENS,
    progress: Progress = lambda done, total: None,
) -> StoreInfo:
    """Writes the store. `tokenizer` is a fingerprint. `progress(done, total)`: tokens whose suffixes are sorted.
    OSError of the output becomes a StoreError; errors of `pieces` pass through."""
    need_at_least("datastore", vocab_size=(vocab_size, 1), chunk_tokens=(chunk_tokens, 1))
    if chunk_tokens > MOST_CHUNK_TOKENS:
        raise OptionError(f"datastore: chunk_tokens cannot be {chunk_tokens}\nhint: {MOST_CHUNK_TOKENS} at most")
    sort = suffix_sorter()
    with replacing(path, SUFFIXES) as (file, partial):
        info = _write_tokens(file, pieces, StoreInfo(vocab_size, tokenizer, model), chunk_tokens)
        _write_suffixes(file, partial, info, sort, progress)
        write_ends(file, info)
        file.flush()
        write_ends(file, info := _with_digests(partial, info))
    return info


def suffix_sorter() -> Callable[[np.ndarray], np.ndarray]:
    """Sorts the suffixes of an array of bytes. Imported here, because only building needs it."""
    try:
        from pydivsufsort import divsufsort
    except ImportError:
        raise StoreError(
            "building a datastore needs pydivsufsort, which is not installed\nhint: pip install draftwood[datastore]"
        ) from None
    return divsufsort


def _write_tokens(file: BinaryIO, pieces: Iterable[Piece], info: StoreInfo, chunk_tokens: int) -> StoreInfo:
    file.write(bytes(HEAD.size))
    dtype, documents, tokens, separators, within = f">u{info.width}", 0, 0, 0, False
    for piece in pieces:
        if len(piece.ids) and (int(piece.ids.max()) >= info.vocab_size or int(piece.ids.min()) < 0):
            raise ValueError(f"token ids outside a vocabulary of {info.vocab_size}")
        file.write(np.asarray(piece.ids, dtype=dtype).tobytes())
        tokens, within = tokens + len(piece.ids), within or bool(len(piece.ids))
        if piece.ends and within:  # an empty document leaves nothing
            file.write(np.array([info.separator], dtype=dtype).tobytes())
            documents, separators, within = documents + 1, separators + 1, False
    if within:
        file.write(np.array([info.separator], dtype=dtype).tobytes())
        documents, separators = documents + 1, separators + 1
    size = tokens + separators
    chunks = tuple(ChunkInfo(min(chunk_tokens, size - at)) for at in range(0, size, chunk_tokens))
    info = replace(info, num_documents=documents, num_tokens=tokens, chunks=chunks)
    file.write(bytes(info.suffixes_at - file.tell()))
    file.flush()
    return info


def _write_suffixes(file: BinaryIO, partial: Path, info: StoreInfo, sort: Any, progress: Progress) -> None:
    """A suffix array over bytes, of which the suffixes that begin with a token's first byte are kept: bytes of big-endian
    tokens compare as the tokens do."""
    start, done = HEAD.size, 0
    for chunk in info.chunks:
        progress(done, info.size)
        data = np.fromfile(partial, np.uint8, chunk.size * info.width, offset=start)
        order = sort(data)
        for at in range(0, len(order), _BLOCK):
            block = order[at : at + _BLOCK]
            file.write((block[block % info.width == 0] // info.width).astype("<u4").tobytes())
        start, done = start + len(data), done + chunk.size
    progress(done, info.size)


def _with_digests(partial: Path, info: StoreInfo) -> StoreInfo:
    """Opened as any reader would, so that what is about to be published is known to open."""
    written = zip(info.chunks, Store.open(partial).chunks, strict=True)
    return replace(info, chunks=tuple(replace(told, sha256=digest_of(chunk)) for told, chunk in written))

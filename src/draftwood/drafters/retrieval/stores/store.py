"""Store: an open datastore. Memory-mapped and read-only, so processes share its pages and opening takes no time.

Opening compares the length of the file, the checksum of its ends and some suffixes. `check` reads everything. Damage that
neither has seen cannot lead out of the file: whoever follows a suffix tests it first, and whoever looks something up asks
whether the file still has its length.
"""

import hashlib
import mmap
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from draftwood.drafters.retrieval.stores.container import BLOCK, HEAD, SUFFIXES, damaged, mapped, need_whole
from draftwood.drafters.retrieval.stores.file_format import SUFFIX_BYTES, StoreInfo, read_info
from draftwood.errors import StoreError

SAMPLES = 64  # suffixes of each chunk that are looked at when it is opened
KEY_TOKENS = 16  # of each of them


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A part of the tokens, from number `first` on, with its suffix array. `data` is the whole file, `start` and `end` are
    the bytes of it between which the tokens lie."""

    data: mmap.mmap = field(repr=False)
    width: int
    first: int
    start: int
    end: int
    suffixes: memoryview = field(repr=False)  # as whole numbers of Python, for the search
    order: np.ndarray = field(repr=False)  # the same, for numpy

    def key(self, suffix: int, size: int) -> bytes:
        """The first `size` bytes of a suffix; fewer where the chunk ends, none where a suffix lies outside."""
        at = self.start + suffix * self.width
        return self.data[at : min(at + size, self.end)]


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    path: Path
    info: StoreInfo
    tokens: np.ndarray = field(repr=False)  # of all chunks: a document may go on in the next one
    chunks: tuple[Chunk, ...] = field(repr=False)

    @staticmethod
    def open(path: Path | str) -> "Store":
        """StoreError says what is wrong with the file."""
        path = Path(path)
        info, data = mapped(path, SUFFIXES, read_info)
        tokens = np.frombuffer(data, f">u{info.width}", info.size, HEAD.size)
        store = Store(path, info, tokens, tuple(_chunks(info, data)))
        for chunk in store.chunks:
            store._look_at(chunk)
        return store

    def need_tokenizer(self, fingerprint: str) -> None:
        """StoreError if the ids of the store mean other tokens."""
        if fingerprint != self.info.tokenizer:
            raise StoreError(
                f"datastore {self.path} was built with another tokenizer: {self.info.tokenizer}"
                f"{f' of {self.info.model}' if self.info.model else ''}, the target has {fingerprint}\n"
                "hint: build one for this target: `draftwood datastore build FILES... --model NAME --out STORE`"
            )

    def need_whole(self) -> None:
        """StoreError if the file was cut while it is open. Whoever looks something up asks first."""
        if self.chunks:
            need_whole(self.path, self.chunks[0].data)

    def check(self) -> None:
        """StoreError names the first chunk whose bytes do not match their checksum. Reads the whole file."""
        self.need_whole()
        for number, (chunk, told) in enumerate(zip(self.chunks, self.info.chunks, strict=True)):
            if digest_of(chunk) != told.sha256:
                raise self.damaged(f"chunk {number + 1} of {len(self.chunks)} does not match its checksum")

    def damaged(self, how: str) -> StoreError:
        return damaged(self.path, how)

    def _look_at(self, chunk: Chunk) -> None:
        """A few suffixes lie in the chunk, in rising order, and begin with tokens of the vocabulary."""
        size = len(chunk.suffixes)
        some = [chunk.suffixes[i * (size - 1) // SAMPLES] for i in range(SAMPLES + 1)]
        if max(some) >= size:
            raise self.damaged("a suffix lies outside its chunk")
        keys = [chunk.key(suffix, KEY_TOKENS * chunk.width) for suffix in some]
        if any(a > b for a, b in pairwise(keys)):
            raise self.damaged("its suffixes are not in order")
        if int(self.tokens[[chunk.first + suffix for suffix in some]].max()) > self.info.separator:
            raise self.damaged("a token is outside the vocabulary")


def digest_of(chunk: Chunk) -> str:
    """SHA-256 of the tokens and the suffix array, read in pieces."""
    digest = hashlib.sha256()
    for at in range(chunk.start, chunk.end, BLOCK):
        digest.update(chunk.data[at : min(at + BLOCK, chunk.end)])
    for at in range(0, len(chunk.order), BLOCK):
        digest.update(chunk.order[at : at + BLOCK].data)
    return digest.hexdigest()


def _chunks(info: StoreInfo, data: mmap.mmap) -> list[Chunk]:
    found: list[Chunk] = []
    start, suffixes_at = HEAD.size, info.suffixes_at
    whole = memoryview(data)
    for each in info.chunks:
        end, suffixes_end = start + each.size * info.width, suffixes_at + each.size * SUFFIX_BYTES
        found.append(
            Chunk(
                data=data,
                width=info.width,
                first=(start - HEAD.size) // info.width,
                start=start,
                end=end,
                suffixes=whole[suffixes_at:suffixes_end].cast("I"),
                order=np.frombuffer(data, "<u4", each.size, suffixes_at),
            )
        )
        start, suffixes_at = end, suffixes_end
    return found

"""The file of a datastore of suffixes, between the ends that `container` writes.

    64    tokens of all chunks, big-endian, so that bytes compare as tokens do; a separator ends every document
    ...   suffix arrays of all chunks, little-endian uint32, from a multiple of 64 on

Places of chunks follow from their sizes, so a file of the right length has no offset that leads out of it.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from draftwood._version import __version__
from draftwood.drafters.retrieval.stores import container
from draftwood.drafters.retrieval.stores.container import HEAD, SUFFIXES, count
from draftwood.errors import StoreError

SUFFIX_BYTES = 4


@dataclass(frozen=True, slots=True)
class ChunkInfo:
    """`size`: tokens with separators. `sha256`: of its tokens and its suffix array."""

    size: int
    sha256: str = "0" * 64


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """What a store says of itself. A token's width and the separator follow from the vocabulary."""

    vocab_size: int
    tokenizer: str  # fingerprint
    model: str = ""  # as the builder named it
    num_documents: int = 0
    num_tokens: int = 0  # without separators
    chunks: tuple[ChunkInfo, ...] = ()
    made_by: str = field(default=f"draftwood {__version__}")

    @property
    def separator(self) -> int:
        """One more than the last token id: in no text, and above every token."""
        return self.vocab_size

    @property
    def width(self) -> int:
        """Bytes of a token."""
        return 2 if self.vocab_size < 1 << 16 else 4

    @property
    def size(self) -> int:
        return sum(chunk.size for chunk in self.chunks)

    @property
    def suffixes_at(self) -> int:
        """Where the first suffix array begins."""
        return -(-(HEAD.size + self.size * self.width) // 64) * 64

    @property
    def data_end(self) -> int:
        return self.suffixes_at + self.size * SUFFIX_BYTES


def write_ends(file: BinaryIO, info: StoreInfo) -> None:
    """Footer and head around data that is there already."""
    container.write_ends(file, SUFFIXES, info.data_end, asdict(info))


def read_info(file: BinaryIO, path: Path) -> StoreInfo:
    """What the ends of the file say. StoreError if it is no store, of another version, cut short or changed."""
    info, end = container.read_ends(file, path, SUFFIXES, _parsed)
    if info.data_end != end:
        raise StoreError(f"{path} is damaged: its chunks do not fill it\nhint: {SUFFIXES.again}")
    return info


def _parsed(found: dict[str, Any]) -> StoreInfo:
    chunks = tuple(ChunkInfo(count(each["size"], 1), str(each["sha256"])) for each in found["chunks"])
    return StoreInfo(
        vocab_size=count(found["vocab_size"], 1),
        tokenizer=str(found["tokenizer"]),
        model=str(found["model"]),
        num_documents=count(found["num_documents"]),
        num_tokens=count(found["num_tokens"]),
        chunks=chunks,
        made_by=str(found["made_by"]),
    )

"""The file of a datastore. It is written once, memory-mapped by its readers, and never changed.

    0     head: magic, version, where the footer begins, its length, SHA-256 of these numbers and the footer
    64    tokens of all chunks, big-endian, so that bytes compare as tokens do; a separator ends every document
    ...   suffix arrays of all chunks, little-endian uint32, from a multiple of 64 on
    ...   footer: JSON, up to the end of the file

Places of chunks follow from their sizes, so a file of the right length has no offset that leads out of it.
"""

import hashlib
import json
import struct
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from draftwood._version import __version__
from draftwood.errors import StoreError

MAGIC, VERSION = b"DRAFTWDS", 1
HEAD = struct.Struct("<8sQQQ32s")  # magic, version, start and length of the footer, digest
MOST_FOOTER = 16 << 20
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
    """Footer and head around data that is there already. The head comes last: without it the file is no store."""
    footer = json.dumps(asdict(info), separators=(",", ":")).encode()
    file.seek(info.data_end)
    file.write(footer)
    file.seek(0)
    file.write(HEAD.pack(MAGIC, VERSION, info.data_end, len(footer), _digest(info.data_end, footer)))


def read_info(file: BinaryIO, path: Path) -> StoreInfo:
    """What the ends of the file say. StoreError if it is no store, of another version, cut short or changed."""
    size = file.seek(0, 2)
    file.seek(0)
    head = file.read(HEAD.size)
    if len(head) < HEAD.size or not head.startswith(MAGIC):
        raise StoreError(f"{path} is no datastore\nhint: `draftwood datastore build FILES... --out STORE` makes one")
    _, version, start, length, digest = HEAD.unpack(head)
    if version != VERSION:
        raise StoreError(f"{path} has version {version} of the format, this program reads {VERSION}\nhint: {_AGAIN}")
    if length > MOST_FOOTER or start + length != size:
        raise StoreError(f"{path} is damaged: it has {size} bytes instead of {start + length}\nhint: {_AGAIN}")
    file.seek(start)
    footer = file.read(length)
    if _digest(start, footer) != digest:
        raise StoreError(f"{path} is damaged: its description does not match its checksum\nhint: {_AGAIN}")
    try:
        info = _parsed(json.loads(footer))
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} has a strange description: {error}\nhint: {_AGAIN}") from None
    if info.data_end != start:
        raise StoreError(f"{path} is damaged: its chunks do not fill it\nhint: {_AGAIN}")
    return info


_AGAIN = "build it again with `draftwood datastore build`"


def _digest(start: int, footer: bytes) -> bytes:
    return hashlib.sha256(struct.pack("<QQQ", VERSION, start, len(footer)) + footer).digest()


def _parsed(found: dict[str, Any]) -> StoreInfo:
    chunks = tuple(ChunkInfo(_count(each["size"], 1), str(each["sha256"])) for each in found["chunks"])
    return StoreInfo(
        vocab_size=_count(found["vocab_size"], 1),
        tokenizer=str(found["tokenizer"]),
        model=str(found["model"]),
        num_documents=_count(found["num_documents"]),
        num_tokens=_count(found["num_tokens"]),
        chunks=chunks,
        made_by=str(found["made_by"]),
    )


def _count(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << 40:
        raise ValueError(f"a count is {value!r}")
    return value

"""The ends of a datastore's file, whatever lies between them.

    0     head: magic, version, where the footer begins, its length, SHA-256 of these numbers and the footer
    64    data
    ...   footer: JSON, up to the end of the file

It is written once, memory-mapped by its readers, and never changed.
"""

import hashlib
import json
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from draftwood.errors import StoreError

HEAD = struct.Struct("<8sQQQ32s")  # magic, version, start and length of the footer, digest
MOST_FOOTER = 16 << 20
BLOCK = 1 << 22  # bytes hashed at a time

Info = TypeVar("Info")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of file. `name`: what it is called in messages. `make`: the command that writes one."""

    magic: bytes
    version: int
    name: str
    make: str

    @property
    def again(self) -> str:
        return f"build it again with `{self.make}`"


SUFFIXES = Kind(b"DRAFTWDS", 1, "datastore", "draftwood datastore build FILES... --out STORE")
DENSE = Kind(b"DRAFTWDD", 1, "dense datastore", "draftwood datastore build FILES... --dense --model NAME --out STORE")
KINDS = (SUFFIXES, DENSE)


def kind_of(head: bytes) -> Kind | None:
    """By the first bytes of a file."""
    return next((kind for kind in KINDS if head.startswith(kind.magic)), None)


def write_ends(file: BinaryIO, kind: Kind, data_end: int, description: dict[str, Any]) -> None:
    """Footer and head around data that is there already. The head comes last: without it the file is no store."""
    footer = json.dumps(description, separators=(",", ":")).encode()
    file.seek(data_end)
    file.write(footer)
    file.seek(0)
    file.write(HEAD.pack(kind.magic, kind.version, data_end, len(footer), _digest(kind, data_end, footer)))


def read_ends(file: BinaryIO, path: Path, kind: Kind, parse: Callable[[dict[str, Any]], Info]) -> tuple[Info, int]:
    """What the ends of the file say, and where its data ends. StoreError if it is no such store, of another version, cut
    short or changed."""
    size = file.seek(0, 2)
    file.seek(0)
    head = file.read(HEAD.size)
    found = kind_of(head)
    if len(head) < HEAD.size or found is None:
        raise StoreError(f"{path} is no datastore\nhint: `{kind.make}` makes one")
    if found != kind:
        raise StoreError(f"{path} is a {found.name}, not a {kind.name}\nhint: `{kind.make}` makes one")
    _, version, start, length, digest = HEAD.unpack(head)
    if version != kind.version:
        raise StoreError(
            f"{path} has version {version} of the format, this program reads {kind.version}\nhint: {kind.again}"
        )
    if length > MOST_FOOTER or start + length != size:
        raise StoreError(f"{path} is damaged: it has {size} bytes instead of {start + length}\nhint: {kind.again}")
    file.seek(start)
    footer = file.read(length)
    if _digest(kind, start, footer) != digest:
        raise StoreError(f"{path} is damaged: its description does not match its checksum\nhint: {kind.again}")
    try:
        return parse(json.loads(footer)), start
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} has a strange description: {error}\nhint: {kind.again}") from None


def _digest(kind: Kind, start: int, footer: bytes) -> bytes:
    return hashlib.sha256(struct.pack("<QQQ", kind.version, start, len(footer)) + footer).digest()


def count(value: Any, least: int = 0) -> int:
    """A count of a description. ValueError if it is none."""
    if type(value) is not int or not least <= value < 1 << 40:
        raise ValueError(f"a count is {value!r}")
    return value


def damaged(path: Path, how: str) -> StoreError:
    return StoreError(f"datastore {path} is damaged: {how}\nhint: build it again")


def need_whole(path: Path, data: mmap.mmap) -> None:
    """StoreError if the file has become shorter since it was opened: the system ends a process that reads beyond the end of
    a mapped file. A file that is replaced by another one stays whole for those who have it open."""
    if data.size() < len(data):
        raise damaged(path, f"it was cut to {data.size()} bytes while it is open")


def mapped(path: Path, kind: Kind, read: Callable[[BinaryIO, Path], Info]) -> tuple[Info, mmap.mmap]:
    """What `read` finds at the ends of a file, and the file in memory. StoreError if it cannot be opened."""
    try:
        with path.open("rb") as file:
            return read(file, path), mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        make = kind.make.replace("STORE", str(path))
        raise StoreError(
            f"datastore {path} cannot be opened: {error.strerror or error}\nhint: `{make}` makes one"
        ) from None

"""Trace files: JSON lines in one gzip stream, flushed after every round.

A flush after each round costs some of the compression, and a killed run leaves all of its rounds: the reader stops at the
end of the last whole line. A file is created and never overwritten, so two runs cannot write into one.
"""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draftwood.bench.trace.records import KINDS, VERSION, Header, Record
from draftwood.errors import TraceError

_GZIP = 31  # of zlib: with a gzip header
_LEVEL = 3  # half the time of the usual 6, and 8 % more bytes
_PIECE = 1 << 16


class TraceWriter:
    """A sink of records. TraceError if the file exists already."""

    def __init__(self, path: Path, header: Header) -> None:
        try:
            self._file = path.open("xb", buffering=0)
        except FileExistsError:
            raise TraceError(f"{path} exists already\nhint: another name for the trace, or remove it first") from None
        except OSError as error:
            raise TraceError(f"{path} cannot be written: {error.strerror}\nhint: another name for the trace") from None
        self.path = path
        self._gzip = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._write(header.line())

    def __call__(self, record: Record) -> None:
        self._write(record.line())

    def _write(self, line: dict[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n"
        data = self._gzip.compress(text.encode()) + self._gzip.flush(zlib.Z_SYNC_FLUSH)
        while data:  # an unbuffered file may take less than all
            data = data[self._file.write(data) :]

    def close(self) -> None:
        """End the stream. What was written before is readable without."""
        if not self._file.closed:
            with self._file:
                self._file.write(self._gzip.flush(zlib.Z_FINISH))

    def abandon(self) -> None:
        """Close the file as it is, after whatever happened."""
        self._file.close()


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each whole line, of a gzip stream that may be cut short, or of plain text. A last line without
    its end has the number 0."""
    try:
        with path.open("rb") as file:
            begin = file.read(2)
            file.seek(0)
            unzip = zlib.decompressobj(_GZIP) if begin == b"\x1f\x8b" else None
            rest, number = b"", 0
            while piece := file.read(_PIECE):
                rest += piece if unzip is None else unzip.decompress(piece)
                *whole, rest = rest.split(b"\n")
                for line in whole:
                    number += 1
                    yield number, line
            if rest:
                yield 0, rest
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}\nhint: a file that --trace wrote") from None
    except zlib.error as error:
        raise TraceError(
            f"{path} is damaged: {error}\nhint: copy it again; what is before the damage cannot be trusted"
        ) from None


def records(path: Path) -> Iterator[Header | Record]:
    """The header, then all records. A half-written last line is left out. TraceError names a line that is no record."""
    for number, raw in lines(path):
        if number == 0:
            return
        try:
            line = json.loads(raw)
            if number == 1:
                yield _header(path, line)
            else:
                yield KINDS[next(iter(line))].of(line)
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError) as error:
            kind = "no trace" if number == 1 else f"line {number} is no record of a trace"
            raise TraceError(
                f"{path}: {kind}: {type(error).__name__}: {error}\nhint: a file that --trace wrote"
            ) from None


def _header(path: Path, line: dict[str, Any]) -> Header:
    version = line["trace"]
    if version != VERSION:
        raise TraceError(f"{path} has format {version!r}, this version reads {VERSION}\nhint: record it again")
    return Header.of(line)

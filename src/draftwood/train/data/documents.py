"""Files as token ids for a datastore: UTF-8 texts, sources, and dialogues (.jsonl, .jsonl.gz). Documents stay apart.

Texts are read and tokenised in pieces, so memory does not grow with a file or a line. Pieces end at a line or a space if
there is one: a word cut in two would become other tokens.
"""

import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from draftwood.drafters.retrieval.stores.build import Piece
from draftwood.errors import OptionError
from draftwood.models.loading.tokenizer import Tokenizer
from draftwood.train.data.dialogues import HELDOUT, parse
from draftwood.train.data.passages import BARE, CODE, PROSE

DIALOGUES = (".jsonl", ".jsonl.gz")
ALSO = {".tex", ".html", ".css", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".pyi", ".cs", ".kt", ".swift", ".lua", ".r"}
LETTERS = 1 << 16  # characters of a piece
TOGETHER = 1 << 20  # characters tokenised at once, on all cores
LONGEST = 1 << 24  # bytes of a line of dialogue


@dataclass(slots=True)
class Documents:
    """The documents of some files. `skipped`: files that were left out, and why; `num_broken`: lines that are not
    dialogues."""

    files: Sequence[Path]
    tokenizer: Tokenizer
    progress: Callable[[int], None] = lambda read: None  # bytes more are read
    skipped: list[tuple[Path, str]] = field(default_factory=list[tuple[Path, str]])
    num_broken: int = 0

    def pieces(self) -> Iterator[Piece]:
        """Tokens in order, encoded many pieces at a time."""
        texts: list[tuple[str, bool]] = []
        letters = 0
        for file in self.files:
            told = 0
            if file.name.endswith(DIALOGUES):
                yield from self._encoded(texts)
                texts, letters = [], 0
                yield from self._dialogues(file)
            else:
                for text, ends in self._texts(file):
                    texts.append((text, ends))
                    letters += len(text)
                    told += len(text)  # a character is a byte or more: the rest is told at the end of the file
                    self.progress(len(text))
                    if letters >= TOGETHER:
                        yield from self._encoded(texts)
                        texts, letters = [], 0
            self.progress(max(size_of(file) - told, 0))
        yield from self._encoded(texts)

    def _encoded(self, texts: list[tuple[str, bool]]) -> Iterator[Piece]:
        found = self.tokenizer.backend.encode_batch_fast([text for text, _ in texts], add_special_tokens=False)
        for encoding, (_, ends) in zip(found, texts, strict=True):
            yield Piece(np.array(encoding.ids, dtype=np.int64), ends)

    def _texts(self, file: Path) -> Iterator[tuple[str, bool]]:
        """Pieces of a text file. It is read to its end first: half a file must not be left behind."""
        try:
            with file.open(encoding="utf-8-sig") as stream:
                if any("\0" in block for block in iter(lambda: stream.read(TOGETHER), "")):
                    self.skipped.append((file, "it holds zero bytes, so it is no text"))
                    return
                stream.seek(0)
                yield from cut(iter(lambda: stream.read(LETTERS), ""))
        except UnicodeDecodeError as error:
            self.skipped.append((file, f"it is not UTF-8: byte {error.object[error.start]:#04x}"))
        except OSError as error:
            self.skipped.append((file, f"it cannot be read: {error.strerror or error}"))

    def _dialogues(self, file: Path) -> Iterator[Piece]:
        try:
            with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
                for line in _lines(stream):
                    try:
                        found = parse(line, self.tokenizer, self.tokenizer.vocab_size)
                        yield Piece(found.tokens, answers=found.answers)
                    except ValueError:
                        self.num_broken += 1
        except (OSError, EOFError, zlib.error) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            self.skipped.append((file, f"it cannot be read to its end: {why}"))


def cut(blocks: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Blocks of text joined and cut at the last line end or space of each; with the last piece, True."""
    rest = ""
    for block in blocks:
        text = rest + block
        at = text.rfind("\n") + 1 or max(text.rfind(" "), 0) or len(text)  # the last: nowhere to cut
        if text[:at]:
            yield text[:at], False
        rest = text[at:]
    yield rest, True


class _Stream(Protocol):
    def readline(self, size: int, /) -> bytes: ...


def _lines(stream: _Stream) -> Iterator[bytes]:
    """Lines that are not blank. What follows the first LONGEST bytes of a line is lost, so that it is no dialogue."""
    while line := stream.readline(LONGEST):
        whole = line.endswith(b"\n") or len(line) < LONGEST
        while not whole and (more := stream.readline(LONGEST)):
            whole = more.endswith(b"\n")
        if line.strip():
            yield line


def size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The named files, and texts, sources and dialogues in named folders. Held-out dialogues of a folder are left out: what
    is measured on them must not be looked up. OptionError if a path does not exist."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
                found += [Path(folder, name) for name in sorted(names) if _readable(name)]
        elif path.exists():
            found.append(path)
        else:
            raise OptionError(f"{path}: there is no such file or folder")
    return list(dict.fromkeys(found))


def _readable(name: str) -> bool:
    suffix = os.path.splitext(name)[1].lower()
    text = suffix in PROSE or suffix in CODE or suffix in ALSO or (not suffix and BARE.match(name) is not None)
    return text or (name.endswith(DIALOGUES) and name != HELDOUT)

"""draftwood datastore build: tokenises texts and writes a datastore. Nothing is downloaded but a missing model."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from draftwood.cli.options import Device, Dtype, Model
from draftwood.cli.screen import Screen
from draftwood.errors import OptionError

if TYPE_CHECKING:
    from draftwood.drafters.retrieval.stores.build import Piece
    from draftwood.train.data.documents import Documents

EVERY = 30.0  # seconds between two lines if stderr is not a terminal
NAMED = 5  # files left out that are named; the others are counted


def build(
    files: Annotated[
        list[Path],
        typer.Argument(help="UTF-8 texts, .jsonl files of dialogues, or folders: their texts and sources."),
    ],
    out: Annotated[Path, typer.Option("--out", help="The file to write; a store that is there is replaced.")],
    model: Model = "smollm2",
    chunk_tokens: Annotated[
        int,
        typer.Option("--chunk-tokens", min=1, max=1 << 28, help="Tokens sorted at a time; 10 to 20 bytes each."),
    ] = 1 << 25,
    dense: Annotated[
        bool,
        typer.Option(
            "--dense", help="Index the model's hidden states instead: for `dresd`. The model reads every text."
        ),
    ] = False,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Build a datastore of texts: for the tokenizer of a model, or (--dense) for the model itself.

    --dtype and --device are those of the model that reads the texts, with --dense."""
    if dense:
        from draftwood.cli.making.datastore_dense import build_dense_store

        return build_dense_store(files, out, model, dtype, device)
    from draftwood.drafters.retrieval.stores.build import build_store, suffix_sorter
    from draftwood.models.loading.load import load_tokenizer
    from draftwood.train.data.documents import Documents, files_of, size_of

    if (dtype, device) != ("auto", "auto"):
        raise OptionError(
            "--dtype and --device are options of --dense: other stores need no model\nhint: leave them out"
        )
    suffix_sorter()  # before the work, not after it
    found = files_of(files)
    tokenizer = load_tokenizer(model)
    start = monotonic()
    with Bar(sum(map(size_of, found))) as bar:
        documents = Documents(found, tokenizer, bar.read)
        info = build_store(
            out,
            texts_of(documents),
            vocab_size=tokenizer.vocab_size,
            tokenizer=tokenizer.fingerprint,
            model=model,
            chunk_tokens=chunk_tokens,
            progress=bar.sort,
        )
    seconds, screen = monotonic() - start, Screen()
    for line in left_out(documents):
        print(line, file=sys.stderr)
    kept = len(found) - len(documents.skipped)
    screen.line(f"{info.num_tokens} tokens in {info.num_documents} documents of {kept} files")
    speed, size = info.num_tokens / max(seconds, 1e-9), size_of(out) / 1e6
    screen.line(f"{seconds:.1f} s, {speed:.0f} tokens/s; {out}: {size:.1f} MB")


def texts_of(documents: "Documents") -> "Iterator[Piece]":
    """The pieces of all files. OptionError at the end if they hold no token, so that no store is written."""
    any_token = False
    for piece in documents.pieces():
        any_token = any_token or bool(len(piece.ids))
        yield piece
    if not any_token:
        raise OptionError(
            "\n".join(["the files hold no text", *left_out(documents)])
            + "\nhint: UTF-8 texts, .jsonl files of dialogues, or folders that hold some"
        )


def left_out(documents: "Documents") -> list[str]:
    """Files and lines that are not in the store, a line each."""
    skipped, broken = documents.skipped, documents.num_broken
    said = [f"left out: {file}: {why}" for file, why in skipped[:NAMED]]
    if len(skipped) > NAMED:
        said.append(f"left out: {len(skipped) - NAMED} more files")
    return [*said, *([f"left out: {broken} lines of .jsonl files that are no dialogues"] if broken else [])]


class Bar:
    """Progress on stderr, reading and then sorting: a bar on a terminal, otherwise a line from time to time."""

    def __init__(self, total: int, stream: TextIO | None = None, clock: Callable[[], float] = monotonic) -> None:
        self.total, self.stream, self.clock = total, stream or sys.stderr, clock
        self._done, self._said = 0, clock()
        self._bar: Progress | None = None

    def __enter__(self) -> "Bar":
        if self.stream.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(file=self.stream))
            self._bar.add_task("tokenising", total=self.total)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def read(self, size: int) -> None:
        """So many bytes more are tokenised."""
        self._done += size
        self.tell("tokenising", self._done, self.total, 1e6, "MB")

    def sort(self, done: int, total: int) -> None:
        """The suffixes of so many tokens are sorted."""
        self.tell("sorting suffixes", done, total, 1e6, "M tokens")

    def stage(self, name: str, done: int, total: int) -> None:
        """A stage that is measured in tokens or keys."""
        self.tell(name, done, total, 1e3, "thousand")

    def tell(self, stage: str, done: int, total: int, unit: float, name: str) -> None:
        """A stage in a unit of its own."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=stage, completed=done, total=total)
        elif self.clock() - self._said >= EVERY:
            self._said = self.clock()
            print(f"{stage}: {done / unit:.1f} of {total / unit:.1f} {name}", file=self.stream, flush=True)

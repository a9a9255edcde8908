"""draftwood train data: the target writes training data. Nothing is downloaded."""

import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from draftwood.cli.interrupt import STATUS, until_interrupted
from draftwood.cli.options import Device, Dtype
from draftwood.cli.screen import Screen, table

if TYPE_CHECKING:
    from draftwood.train.data.dataset_folder import Folder

EVERY = 30.0  # seconds between two lines if stderr is not a terminal


def data(
    out: Annotated[Path, typer.Option("--out", help="Folder to write; the same command resumes it.")],
    target: Annotated[
        str, typer.Option("--target", help="The model that writes: an alias, a folder, a name.")
    ] = "smollm2",
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="Answer tokens in total.")] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Stop after so many minutes.")] = None,
    text: Annotated[
        list[Path] | None, typer.Option("--text", help="A file or folder to take passages from. Repeatable.")
    ] = None,
    exclude: Annotated[
        list[Path] | None,
        typer.Option(
            "--exclude", help="Benchmark questions (.jsonl, .gz) to keep out: no 13 tokens in a row. Repeatable."
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Dialogues written at once. Default: 16 on a CPU, 512 elsewhere."),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=8, help="Tokens of an answer; an article may have three times as many.")
    ] = 256,
    dtype: Dtype = "auto",
    device: Device = "auto",
    seed: Annotated[int, typer.Option("--seed", help="The same seed writes the same dialogues.")] = 0,
    mix: Annotated[
        str | None, typer.Option("--mix", help="Shares of kinds, e.g. chat=0.5,math=0.5; other kinds are left out.")
    ] = None,
    own: Annotated[
        float,
        typer.Option("--own", help="With --text: share of the prompts over texts that use the model's own texts."),
    ] = 0.5,
) -> None:
    """Let a model write dialogues to train its drafter on: chats, questions, arithmetic, texts, documents, code.

    With neither --tokens nor --minutes it writes 200000 answer tokens. After an interruption the same command resumes.
    """
    from draftwood.train.data.make_dataset import MIX, DatasetSettings, make_dataset, parse_mix

    wanted = 200_000 if tokens is None and minutes is None else tokens
    settings = DatasetSettings(
        tokens=wanted,
        minutes=minutes,
        texts=tuple(text or ()),
        exclude=tuple(exclude or ()),
        batch=batch,
        max_tokens=max_tokens,
        seed=seed,
        mix=MIX if mix is None else parse_mix(mix),
        own=own,
    )
    with until_interrupted() as until, watch(wanted) as progress:
        record = make_dataset(target, out, settings, device=device, dtype=dtype, until=until, progress=progress)
    show(Screen(), record, out)
    if until.is_set():
        raise typer.Exit(STATUS)


def show(screen: Screen, record: dict[str, Any], out: Path) -> None:
    """Prints what the folder holds."""
    heads = ("dialogues", "prompt tokens", "answer tokens", "held out")
    rows = table("kind", *heads, numbers=set(heads))
    kinds, held = record["kinds"], record["heldout_dialogues"]
    for kind in sorted(kinds, key=lambda k: -kinds[k]["dialogues"]):
        count = kinds[kind]
        numbers = (count["dialogues"], count["prompt_tokens"], count["answer_tokens"], held.get(kind, 0))
        rows.add_row(kind, *(f"{n}" for n in numbers))
    totals = [sum(count[key] for count in kinds.values()) for key in ("dialogues", "prompt_tokens", "answer_tokens")]
    rows.add_row("all", *(f"{n}" for n in (*totals, sum(held.values()))))
    screen.show(rows)
    dropped = ", ".join(f"{why} {count}" for why, count in sorted(record["dropped"].items())) or "nothing"
    speed = record["tokens_written"] / record["seconds"] if record["seconds"] else 0.0
    screen.line(f"dropped: {dropped}; loops shortened: {record['loops_shortened']}")
    screen.line(f"{record['tokens_written']} tokens written in {record['seconds']:.0f} s, {speed:.0f} tokens/s; {out}")


class watch:  # noqa: N801  used as a function in a with statement
    """Progress on stderr: a bar on a terminal, otherwise a line from time to time."""

    def __init__(
        self, wanted: int | None, stream: TextIO | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self.wanted, self.stream, self.clock = wanted, stream or sys.stderr, clock
        self._bar: Progress | None = None
        self._begin: tuple[float, int] | None = None
        self._said = 0.0

    def __enter__(self) -> "watch":
        if self.stream.isatty():
            columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
            self._bar = bar = Progress(*columns, console=Console(file=self.stream))
            bar.add_task("loading", total=self.wanted)
            bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, folder: "Folder") -> None:
        totals, now = folder.totals, self.clock()
        if self._begin is None:
            self._begin = now, totals.tokens_written
            self._said = now
        if now - self._said < (0.5 if self._bar is not None else EVERY):
            return
        self._said = now
        start, before = self._begin
        speed = (totals.tokens_written - before) / max(now - start, 1e-9)
        kinds = ", ".join(f"{kind} {count['dialogues']}" for kind, count in totals.kinds.items())
        said = f"{totals.answer_tokens} answer tokens, {speed:.0f} tokens/s written"
        said += f"; dialogues: {kinds}" if kinds else ""
        if self._bar is None:
            print(said, file=self.stream, flush=True)
        else:
            self._bar.update(self._bar.task_ids[0], completed=totals.answer_tokens, description=said)

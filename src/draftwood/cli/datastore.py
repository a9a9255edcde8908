"""draftwood datastore: build, describe and check the stores that the recipe `rest` drafts from."""

from pathlib import Path
from typing import Annotated

import typer

from draftwood.cli.datastore_build import build
from draftwood.cli.screen import GREEN, Screen

StoreFile = Annotated[Path, typer.Argument(metavar="STORE", help="A file that `draftwood datastore build` wrote.")]


def info(store: StoreFile) -> None:
    """What a datastore holds, and for which tokenizer."""
    from draftwood.drafters.stores.store import Store

    told, screen = Store.open(store).info, Screen()
    screen.line(f"{store}: tokens {told.num_tokens}, documents {told.num_documents}, chunks {len(told.chunks)}")
    screen.line(f"{store.stat().st_size / 1e6:.1f} MB, {told.width} bytes per token and 4 per suffix; {told.made_by}")
    named = f" of {told.model}" if told.model else ""
    screen.line(f"tokenizer {told.tokenizer}{named}, {told.vocab_size} tokens")


def check(store: StoreFile) -> None:
    """Compare all bytes of a datastore with their checksums. A damaged one is refused, with status 2."""
    from draftwood.drafters.stores.store import Store

    opened = Store.open(store)
    opened.check()
    Screen().line(f"{store} is as it was written: {opened.info.num_tokens} tokens", GREEN)


app = typer.Typer(
    help="Build, describe and check datastores of the recipe `rest`.", no_args_is_help=True, rich_markup_mode=None
)
for command in (build, info, check):
    app.command()(command)

"""draftwood datastore: build, describe and check the stores that recipes draft from or count n-grams in."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.cli.making.datastore_build import build
from draftwood.cli.screen import GREEN, Screen

if TYPE_CHECKING:
    from draftwood.drafters.retrieval.stores.dense.store import DenseStore
    from draftwood.drafters.retrieval.stores.store import Store

StoreFile = Annotated[Path, typer.Argument(metavar="STORE", help="A file that `draftwood datastore build` wrote.")]


def info(store: StoreFile) -> None:
    """What a datastore holds, and for which tokenizer or model."""
    from draftwood.drafters.retrieval.stores.dense.format import DenseInfo

    opened, screen = _opened(store), Screen()
    told, size = opened.info, f"{store.stat().st_size / 1e6:.1f} MB"
    named = f" of {told.model}" if told.model else ""
    if not isinstance(told, DenseInfo):
        screen.line(f"{store}: tokens {told.num_tokens}, documents {told.num_documents}, chunks {len(told.chunks)}")
        screen.line(f"{size}, {told.width} bytes per token and 4 per suffix; {told.made_by}")
        screen.line(f"tokenizer {told.tokenizer}{named}, {told.vocab_size} tokens")
        return
    screen.line(f"{store}: dense, keys {told.num_keys}, tokens {told.num_tokens}, texts {told.num_documents}")
    graph = f"graph by {told.graph}" if told.graph else "no graph"
    screen.line(f"{size}, keys of {told.dims} numbers, {graph}; {told.made_by}")
    screen.line(f"hidden states of {told.target} on {told.backend}{named}")


def check(store: StoreFile) -> None:
    """Compare all bytes of a datastore with their checksums. A damaged one is refused, with status 2."""
    opened = _opened(store)
    opened.check()
    Screen().line(f"{store} is as it was written: {opened.info.num_tokens} tokens", GREEN)


def _opened(path: Path) -> "Store | DenseStore":
    """A store of either kind. What is neither is refused as the first one."""
    from draftwood.drafters.retrieval.stores.container import DENSE, HEAD, kind_of
    from draftwood.drafters.retrieval.stores.dense.store import DenseStore
    from draftwood.drafters.retrieval.stores.store import Store

    try:
        with path.open("rb") as file:
            kind = kind_of(file.read(HEAD.size))
    except OSError:
        kind = None  # opening says why
    return DenseStore.open(path) if kind == DENSE else Store.open(path)


app = typer.Typer(
    help="Build, describe and check datastores of texts, for recipes with an option `store`.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (build, info, check):
    app.command()(command)

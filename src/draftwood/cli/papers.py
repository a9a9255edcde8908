"""`draftwood papers`: a list of the recipes, the details of one, or the files of all."""

from typing import Annotated

import typer

from draftwood.cli import catalog, options
from draftwood.cli.screen import DIM, GREEN, Screen, table

TREE = "tree"


def papers(
    name: Annotated[
        str | None, typer.Argument(help="A recipe, for its details; or `tree`, for the files of all.")
    ] = None,
    color: options.Color = None,
) -> None:
    """List the recipes, or show one of them."""
    screen = Screen(color)
    if name is None:
        _list(screen)
    elif name == TREE:
        _tree(screen)
    else:
        _details(screen, catalog.entry(name))


def _list(screen: Screen) -> None:
    drawn = table("recipe", "title", "arXiv", "lossless")
    entries = [catalog.entry(name) for name in catalog.names()]
    for entry in entries:
        mark = "yes *" if entry.lossy_with else "yes"
        drawn.add_row(entry.name, entry.title, entry.arxiv, mark if entry.lossless else "LOSSY")
    screen.show(drawn)
    for entry in entries:
        if entry.lossless and entry.lossy_with:
            screen.line(f"* {entry.name} is LOSSY with {entry.lossy_with}")


def _details(screen: Screen, entry: catalog.Entry) -> None:
    screen.write(entry.name, GREEN)
    screen.line(f"  {entry.title}")
    if entry.arxiv:
        screen.line(f"arXiv     https://arxiv.org/abs/{entry.arxiv}")
    yes = f"yes; LOSSY with {entry.lossy_with}" if entry.lossy_with else "yes"
    screen.line(f"lossless  {yes if entry.lossless else 'no: LOSSY'}")
    if entry.claim:
        screen.line(f"claim     {entry.claim} (the authors')")
    screen.line(f"file      {entry.file}")
    if entry.about:
        screen.line(f"\n{entry.about}")
    screen.line()
    if entry.options:
        drawn = table("option", "value", "default")
        for row in entry.options:
            drawn.add_row(*row)
        screen.show(drawn)
        screen.line(f"\nfor example: draftwood generate --recipe {entry.name} {_example(entry)} ...", DIM)
    else:
        screen.line("no options")
    text = catalog.page(entry.name)
    if text is not None:
        screen.line()
        if screen.color:
            from rich.markdown import Markdown

            screen.show(Markdown(text))
        else:
            screen.line(text.rstrip("\n"))


def _example(entry: catalog.Entry) -> str:
    """Options that can be typed as they stand: those the recipe cannot do without, else the first one that has a value."""
    defaults = {name: default.strip("'\"") for name, _, default in entry.options}
    usual = next((each for each in defaults.items() if each[1] != "None"), ("", ""))
    chosen = dict([(entry.needs, "FILE") if entry.needs else usual])
    return " ".join(f"--option {name}={value}" for name, value in chosen.items())


def _tree(screen: Screen) -> None:
    entries = [catalog.entry(name) for name in catalog.names()]
    width = max((len(part.role) for entry in entries for part in entry.parts), default=0)
    space = max((len(part.file) for entry in entries for part in entry.parts), default=0)
    for entry in entries:
        screen.write(entry.file or entry.name, GREEN)
        screen.line(f"  {entry.title}")
        for i, part in enumerate(entry.parts):
            branch = "└──" if i == len(entry.parts) - 1 else "├──"
            screen.line(f"{branch} {part.role:<{width}}  {part.file:<{space}}  {part.name}")

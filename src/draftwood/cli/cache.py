"""`draftwood cache`: what the user's cache holds and what each entry belongs to; `draftwood cache clear` removes it."""

from typing import Annotated

import typer

app = typer.Typer(
    help="What the cache holds: models as they were packed or converted, kernels, measured costs.",
    no_args_is_help=False,
)


@app.callback(invoke_without_command=True)
def show(context: typer.Context) -> None:
    """List the entries of the cache with their sizes and what each belongs to."""
    if context.invoked_subcommand is not None:
        return
    from draftwood.models.loading.cache_listing import entries
    from draftwood.models.loading.folder_cache import cache_dir

    found = entries()
    print(f"{cache_dir()}: {len(found)} entries, {size(sum(each.num_bytes for each in found))}")
    for each in found:
        print(f"{size(each.num_bytes):>9}  {each.name}\n{'':11}{each.what}{f' of {each.of}' if each.of else ''}")


@app.command()
def clear(
    name: Annotated[
        str | None, typer.Argument(help="An entry's name, or the file or folder it belongs to. Without: everything.")
    ] = None,
) -> None:
    """Remove entries. What draftwood needs is made again at the next start."""
    from draftwood.errors import OptionError
    from draftwood.models.loading.cache_listing import clear as remove

    if name is not None and not name.strip():
        raise OptionError("cache clear: the name is empty\nhint: leave it out to remove everything")
    removed, busy = remove(name)
    print(f"removed {len(removed)} entries, {size(sum(each.num_bytes for each in removed))}")
    for each in busy:
        print(f"{each.name} is being made by another process and stays")


def size(num_bytes: int) -> str:
    """A number of bytes for people."""
    for unit, each in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= each:
            return f"{num_bytes / each:.1f} {unit}"
    return f"{num_bytes} B"

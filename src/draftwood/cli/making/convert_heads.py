"""`draftwood convert`: writes a trained head in another format and checks that its logits stay the same."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from draftwood.cli import options
from draftwood.cli.screen import DIM, GREEN, Screen, report
from draftwood.errors import OptionError


def convert(
    source: Annotated[Path, typer.Argument(help="A draftwood head file, or a folder with config.json and weights.")],
    to: Annotated[str, typer.Option("--to", help="draftwood, eagle, eagle3, speculators, medusa or mlp_speculator.")],
    out: Annotated[Path, typer.Option("--out", help="A new file (draftwood) or folder (all others).")],
    target: Annotated[
        str | None,
        typer.Option("--target", help="The model it drafts for; sizes and embedding are checked against it."),
    ] = None,
    layer_ids: Annotated[
        Literal["auto", "vllm", "sglang"],
        typer.Option("--layer-ids", help="How the source numbers layers: as vllm, or one less, as sglang."),
    ] = "auto",
    floats: Annotated[
        int | None, typer.Option("--float", help="Store in 16 or 32 bits. Default: int8 in draftwood, 32 elsewhere.")
    ] = None,
    color: options.Color = None,
) -> None:
    """Convert a draft head to another format and compare the logits of both."""
    if floats not in (None, 16, 32):
        raise OptionError(f"--float cannot be {floats}\nhint: 16 or 32")
    screen = Screen(color)

    from draftwood.train.formats.conversion import Conversion, open_target
    from draftwood.train.formats.convert import convert as convert_head

    conversion = Conversion(open_target(target) if target else None, layer_ids, floats)
    done = convert_head(source, to, out, conversion)
    c = done.head.config
    screen.line(f"read    {done.source}: a head of kind {c.kind}, {len(done.head.tensors)} tensors")
    for line in conversion.notes:
        screen.line(f"        {line}", DIM)
    rounding = ", rounded as requested" if done.rounded else ""
    screen.line(f"check   largest difference of logits {done.difference:.2e} over {done.columns} tokens{rounding}")
    if not done.same:
        report(f"the converted head gives other logits, so {out} was not kept")
        raise typer.Exit(1)
    screen.line(f"wrote   {out} ({to})", GREEN)

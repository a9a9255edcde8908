"""`draftwood expand`: a small model in the shape of a large one, which says the same at the cost of the large one."""

from pathlib import Path
from time import monotonic
from typing import Annotated, Literal

import typer

from draftwood.cli.making.datastore_build import Bar
from draftwood.cli.options import Model
from draftwood.cli.screen import GREEN, Screen

SHAPE_HELP = "llama-3-8b, llama-1b, or layers,hidden,heads,kv heads,head size,MLP,vocabulary as seven numbers."
HEADS_HELP = "Heads to expand as well, with commas between: kinds that ship for the model (eagle3, eagle), or files."
GGUF_HELP = "Write one GGUF file instead, in blocks of this type: Q8_0, Q4_0 or Q4_1; embedding and head in Q8_0."
NOISE_HELP = "Random numbers in weights that have no effect, so that kernels and quantisers meet ordinary matrices."


def expand(
    shape: Annotated[str, typer.Option("--shape", help=SHAPE_HELP)],
    out: Annotated[Path, typer.Option("--out", help="A new folder.")],
    model: Model = "smollm2",
    heads: Annotated[str, typer.Option("--heads", help=HEADS_HELP)] = "",
    dtype: Annotated[
        Literal["bfloat16", "float32", "float64"], typer.Option("--dtype", help="Type of the weights that are written.")
    ] = "bfloat16",
    gguf: Annotated[str, typer.Option("--gguf", metavar="TYPE", help=GGUF_HELP)] = "",
    noise: Annotated[bool, typer.Option("--noise/--zeros", help=NOISE_HELP)] = True,
    seed: Annotated[int, typer.Option("--seed", help="Of these numbers.")] = 0,
) -> None:
    """Write a model in a larger shape that gives the same texts: for measuring sizes whose weights are not at hand.

    Whatever loads a folder with safetensors can load it. Its texts are the model's own, its heads draft as before, and a
    pass costs what the shape costs.
    """
    import torch

    from draftwood.testing.expand.fill import Filling
    from draftwood.testing.expand.folder import GGUF, write_expanded
    from draftwood.testing.expand.shape import parse

    sizes, names = parse(shape), [name for name in heads.split(",") if name]
    start = monotonic()
    with Bar(1) as bar:
        written = write_expanded(
            model, sizes, out, Filling(getattr(torch, dtype), noise, seed), names,
            lambda done, total: bar.tell("writing", done, total, 1e9, "GB"), gguf,
        )  # fmt: skip
    screen = Screen()
    c = written.config
    screen.line(
        f"{c.num_layers} layers, hidden {c.hidden_size}, {c.num_heads} heads on {c.num_kv_heads}, {c.head_dim} wide, "
        f"MLP {c.intermediate_size}, vocabulary {c.vocab_size}"
    )
    size, seconds = written.num_bytes / 1e9, monotonic() - start
    screen.line(
        f"{written.num_parameters / 1e9:.3f} billion parameters, {size:.2f} GB in {gguf or dtype}, {seconds:.0f} s"
    )
    place = out / GGUF if gguf else out
    screen.line(f"{place}: use it as --model {place}", GREEN)
    for path in written.heads:
        screen.line(f"{path}: use it as --recipe {path.stem} --option weights={path}")

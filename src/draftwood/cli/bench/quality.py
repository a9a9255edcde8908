"""draftwood bench quality: a backend against float32 of the same weights."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.bench.cells import interval
from draftwood.cli.bench.common.progress import say
from draftwood.cli.bench.common.shared import MaxTokens, Model, Out, save, writable
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.options import Device, Seed
from draftwood.cli.screen import Screen
from draftwood.errors import OptionError

if TYPE_CHECKING:
    from draftwood.bench.study.backend_error import Quality
    from draftwood.models.loading.load import Loaded


def quality(
    model: Model = "smollm2",
    dtype: Annotated[str, typer.Option(help="Precisions to compare, separated by commas: int8,q4.")] = "auto",
    device: Device = "auto",
    count: Annotated[int, typer.Option(min=2, help="Number of texts, half greedy, half sampled.")] = 24,
    max_tokens: MaxTokens = 160,
    seed: Seed = 0,
    max_perplexity: Annotated[float, typer.Option(help="Largest ratio of perplexities that passes.")] = 1.01,
    min_agreement: Annotated[float, typer.Option(min=0, max=1, help="Smallest top-1 agreement that passes.")] = 0.98,
    out: Out = None,
) -> None:
    """The error of a backend against float32 of the same weights: perplexity, top-1 agreement and KL divergence."""
    from draftwood.bench.provenance import provenance
    from draftwood.bench.study.backend_error import OVERALL, compare, write_texts
    from draftwood.models.loading.load import load

    writable(out)
    names = dtype.split(",")
    if "float32" in names:
        raise OptionError("float32 is the reference itself\nhint: --dtype int8, or leave it out")
    backend, *others = (load(model, dtype=name, device=device) for name in names)
    reference = load(model, dtype="float32", device=backend.info.device)
    if backend.info.backend == reference.info.backend:
        raise OptionError(
            f"{model} has no other backend than {backend.info.backend} on {backend.info.device}\nhint: another model"
        )
    source = provenance(backend.info.backend, backend.info.device)
    texts = write_texts(reference, count, max_tokens, seed, say=say)
    rows: list[dict[str, Any]] = []
    misses: list[str] = []
    for name, each in zip(names, (backend, *others), strict=True):
        found = compare(reference, each, texts, say=say)
        show(Screen(), found, label(name, each), source)
        overall = next(q for q in found if q.kind == OVERALL)
        misses += [f"{name}: {miss}" if others else miss for miss in overall.misses(max_perplexity, min_agreement)]
        rows += [asdict(q) | ({"dtype": name} if others else {}) for q in found]
    limits = {"max_perplexity": max_perplexity, "min_agreement": min_agreement, "misses": misses}
    settings = {"count": count, "max_tokens": max_tokens, "seed": seed, **limits}
    save(out, {"provenance": source, **settings, "rows": rows})
    if misses:
        print("\n".join(("NOT GOOD ENOUGH", *misses)), flush=True)
        raise typer.Exit(1)


def label(dtype: str, loaded: "Loaded") -> str:
    """What a table calls a backend: several precisions may share its kernels, so the types of the weights are named too."""
    from draftwood.models.backends.int8_native import NativeDecoder

    backend = loaded.info.backend
    if isinstance(loaded.model, NativeDecoder):
        return f"{backend}, weights in {', '.join(kind.name for kind in sorted(loaded.model.weights.kinds))}"
    return f"{dtype} weights, {backend}" if dtype == "q4" else backend


def show(screen: Screen, found: "list[Quality]", backend: str, source: dict[str, Any]) -> None:
    perplexity = ("float32 perplexity", "backend perplexity", "ratio, 95 %")
    drawn = compact(
        "answers", "texts", "positions", *perplexity, "top-1 agreement", "mean KL", "largest logit difference"
    )
    for q in found:
        perplexities = (f"{q.reference:.4f}", f"{q.backend:.4f}", interval(q.ratio, 4))
        errors = (f"{q.agreement:.2%}", f"{q.divergence:.2e}", f"{q.difference:.2f}")
        drawn.add_row(q.kind, str(q.texts), str(q.positions), *perplexities, *errors)
    screen.line(f"{backend} against float32 of the same weights")
    screen.line()
    screen.show(drawn)
    screen.line(
        "\ntexts: answers of the float32 model to built-in and generated questions; positions: every token of the answers,\n"
        "predicted by both models from the same tokens before it; ratio: paired bootstrap over texts; KL in nats"
    )
    screen.line(json.dumps(source))

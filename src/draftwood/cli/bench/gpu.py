"""draftwood bench gpu: the figures of a GPU, each part by its name, and the page that shows them."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.cli.bench.common.progress import quarters
from draftwood.cli.bench.common.shared import whole_numbers
from draftwood.cli.screen import GREEN, Screen
from draftwood.errors import OptionError

if TYPE_CHECKING:
    import torch

    from draftwood.models.loading.load import Loaded

PARTS = ("pass", "small", "texts", "expanded", "depths", "outside")
PARTS_HELP = f"Parts, separated by commas: {', '.join(PARTS)}. Each takes less than ten minutes."
SHAPE = "llama-3-8b"


def gpu(
    parts: Annotated[str, typer.Argument(metavar="PARTS", help=PARTS_HELP)] = ",".join(PARTS),
    out: Annotated[Path, typer.Option(help="A folder; parts of earlier runs in it are kept.")] = Path("gpu-results"),
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cuda or cuda:N.")] = "cuda",
    model: Annotated[str, typer.Option(help="A model's name or path, for all parts but the first.")] = "smollm2",
    batches: Annotated[str, typer.Option(help="Batch sizes of fixed depths, separated by commas.")] = "1,8,32,128",
    repeats: Annotated[int, typer.Option(min=1, help="How often everything is timed.")] = 5,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 128,
) -> None:
    """Passes against the memory floor, tokens per second, and time outside the model, on a GPU, as a Markdown page."""
    names = chosen_parts(parts)
    sizes = whole_numbers("batches", batches, 256)
    chosen = checked_device(device)
    from draftwood.bench.gpu.page import keep
    from draftwood.bench.provenance import provenance

    screen = Screen()
    settings = Settings(model, chosen, sizes, repeats, max_tokens)
    for name in names:
        screen.line(f"{name} ...")
        found = RUN[name](settings)
        found["provenance"] = provenance(found.pop("backend"), chosen)
        written = keep(out, name, found)
    screen.line(f"{written}", GREEN)


def chosen_parts(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    wrong = [name for name in names if name not in PARTS]
    if wrong or not names:
        raise OptionError(f"parts cannot be {text!r}\nhint: of {', '.join(PARTS)}")
    return [name for name in PARTS if name in names]


def checked_device(device: str) -> "torch.device":
    """A GPU that torch can use; anything else is refused before work begins."""
    import torch

    if not device.startswith("cuda"):
        raise OptionError(
            f"bench gpu measures a GPU, not {device}\nhint: --device cuda; for a CPU: draftwood bench pass"
        )
    if not torch.cuda.is_available():
        raise OptionError("bench gpu: torch finds no GPU here\nhint: a machine with one, and a CUDA build of torch")
    found = torch.device(device)
    if (found.index or 0) >= torch.cuda.device_count():
        raise OptionError(f"bench gpu: no device {device}, there are {torch.cuda.device_count()}\nhint: --device cuda")
    return found


class Settings:
    """What the parts share. The model is loaded once."""

    def __init__(self, model: str, device: "torch.device", batches: list[int], repeats: int, max_tokens: int) -> None:
        self.model, self.device, self.batches = model, device, batches
        self.repeats, self.max_tokens = repeats, max_tokens
        self._loaded: Loaded | None = None

    @property
    def loaded(self) -> "Loaded":
        if self._loaded is None:
            from draftwood.models.loading.load import load

            self._loaded = load(self.model, device=self.device)
        return self._loaded

    def clock(self, run: Callable[[], Any]) -> float:
        from draftwood.bench.micro.target_pass import clock

        return clock(run, self.device)


def shaped_pass(s: Settings) -> dict[str, Any]:
    import torch

    from draftwood.bench.gpu.passes import BATCH_CASES, PLAIN_CASES, random_decoder
    from draftwood.core.config import ModelConfig
    from draftwood.testing.expand.shape import parse

    config = ModelConfig(family="llama", rope_theta=500_000.0, **asdict(parse(SHAPE)))
    return _passes(s, random_decoder(config, s.device, torch.bfloat16), (*PLAIN_CASES, *BATCH_CASES))


def small_pass(s: Settings) -> dict[str, Any]:
    from draftwood.bench.gpu.passes import BATCH_CASES, PLAIN_CASES

    return _passes(s, s.loaded.model, (*PLAIN_CASES[:3], BATCH_CASES[2]))


def _passes(s: Settings, model: Any, cases: Any) -> dict[str, Any]:
    from draftwood.bench.gpu.floor import bandwidth
    from draftwood.bench.gpu.passes import measure

    speed = bandwidth(s.device, s.clock)
    found = measure(model, cases, speed, s.clock, repeats=2 * s.repeats, say=quarters("passes"))
    return {"rows": [asdict(row) for row in found], "bytes_per_second": speed, "backend": model.info.backend}


def texts(s: Settings) -> dict[str, Any]:
    return _speeds(s, s.loaded, ("autoregressive", "eagle3", "auto"), [1, 8])


def expanded(s: Settings) -> dict[str, Any]:
    """Writes a folder of 16 GB, which is removed."""
    import torch

    from draftwood.models.loading.load import load
    from draftwood.testing.expand.fill import Filling
    from draftwood.testing.expand.folder import write_expanded
    from draftwood.testing.expand.shape import parse

    with TemporaryDirectory(prefix="draftwood-") as folder:
        wide = Path(folder) / "wide"
        write_expanded(s.model, parse(SHAPE), wide, Filling(torch.bfloat16, True, 0), ["eagle3"])
        head = wide / "heads" / "eagle3.safetensors"
        return _speeds(s, load(str(wide), device=s.device), ("autoregressive", f"eagle3:weights={head}"), [1, 8])


def depths(s: Settings) -> dict[str, Any]:
    names = ("autoregressive", *(f"eagle3:depth={d}:beam=1:nodes={d}" for d in (2, 4)))
    return _speeds(s, s.loaded, names, s.batches)


def _speeds(s: Settings, loaded: "Loaded", names: tuple[str, ...], batches: list[int]) -> dict[str, Any]:
    from draftwood.bench.gpu.texts import Case, measure

    cases = [Case(name, batch, name.partition(":weights")[0]) for batch in batches for name in names]
    found = measure(loaded, cases, max_tokens=s.max_tokens, repeats=s.repeats, say=quarters("repeats"))
    return {"rows": [asdict(row) for row in found], "backend": loaded.info.backend}


def outside(s: Settings) -> dict[str, Any]:
    from draftwood.bench.gpu.texts import PROMPTS
    from draftwood.bench.micro.engine import Case, measure
    from draftwood.core.sampling.params import SamplingParams

    prompts = [tuple(s.loaded.tokenizer.encode_chat([{"role": "user", "content": text}])) for text in PROMPTS]
    params = SamplingParams(temperature=0.0, max_tokens=s.max_tokens)
    cases = [Case(name, name, params, batch) for batch in (1, 8) for name in ("autoregressive", "eagle3")]
    found = measure(s.loaded, cases, prompts, say=quarters("prompts"))
    rows = [
        {
            "recipe": cost.recipe,
            "batch": cost.batch,
            "ms": cost.total,
            "outside": None if cost.overhead is None else asdict(cost.overhead),
            "outside_kernels": outside_kernels(s, cost.recipe, cost.batch),
        }
        for cost in found
    ]
    return {"rows": rows, "backend": s.loaded.info.backend}


def outside_kernels(s: Settings, recipe: str, batch: int) -> float:
    """The share of the time of whole answers in which no kernel runs; prompts included."""
    from draftwood.bench.gpu.busy import kernel_seconds
    from draftwood.bench.gpu.busy import outside as share
    from draftwood.bench.gpu.texts import Case, answer, opened_llm

    with opened_llm(s.loaded, Case(recipe, batch)) as llm:
        answer(llm, batch, s.max_tokens, 0)
        seconds = answer(llm, batch, s.max_tokens, 1).seconds
        return share(seconds, kernel_seconds(lambda: answer(llm, batch, s.max_tokens, 2)))


RUN: dict[str, Callable[[Settings], dict[str, Any]]] = {
    "pass": shaped_pass,
    "small": small_pass,
    "texts": texts,
    "expanded": expanded,
    "depths": depths,
    "outside": outside,
}

"""The time of target passes: nodes after a context, for some sequences at once, by our kernels and by stock operations."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from draftwood.bench.gpu.floor import Clock, floor_ms
from draftwood.bench.statistics import percentile
from draftwood.core.config import ModelConfig
from draftwood.core.forward import ForwardInput, Span
from draftwood.core.host import put
from draftwood.models.decoder import Decoder
from draftwood.models.loading.tensor_names import expected
from draftwood.runners.cuda import CudaRunner

CHUNK = 512  # tokens of the context that are read at once
IN_A_ROW = 10  # passes that are timed together: the host enqueues the next while one runs
WARM_UP = 3
KERNELS, STOCK = "kernels", "stock"


@dataclass(frozen=True, slots=True)
class Case:
    """`nodes` tokens in a random tree after `context` committed ones, in each of `batch` sequences, logits for all."""

    batch: int
    context: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Timed:
    """Medians in milliseconds by path; None where the path does not run here."""

    case: Case
    ms: dict[str, float | None]
    floor: float

    @property
    def over_floor(self) -> float | None:
        """Of the faster path."""
        known = [x for x in self.ms.values() if x is not None]
        return min(known) / self.floor if known else None


PLAIN_CASES = tuple(Case(1, context, nodes) for context in (512, 4096) for nodes in (1, 16, 64))
BATCH_CASES = (Case(8, 512, 1), Case(32, 512, 1), Case(32, 512, 4), Case(32, 4096, 4))


def random_decoder(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Decoder:
    """A model of random weights: the time of a pass does not depend on them."""
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in expected(config).items():
        made = torch.empty(shape, dtype=dtype, device=device)
        tensors[name] = made.fill_(1.0) if name.endswith("norm.weight") else made.normal_(std=0.02)
    return Decoder.from_tensors(config, tensors, dtype, device)


def measure(
    model: Decoder,
    cases: Sequence[Case],
    bytes_per_second: float,
    clock: Clock,
    *,
    repeats: int = 10,
    say: Callable[[int, int], None] = lambda done, total: None,
) -> list[Timed]:
    """Every case by both paths, one path after the other: their caches need not fit together."""
    found: list[Timed] = []
    runner = CudaRunner(model)
    for number, case in enumerate(cases):
        say(number, len(cases))
        room = case.context + 2 * case.nodes
        ms: dict[str, float | None] = {}
        for path in (KERNELS, STOCK):
            if path == KERNELS and runner.operations() is None:
                ms[path] = None
                continue
            opened = runner.stock(case.batch, room) if path == STOCK else runner.open(case.batch, room)
            ms[path] = _median_ms(opened, case, clock, repeats)
            del opened
            release(model.device)
        found.append(Timed(case, ms, floor_ms(model, case.batch, case.context, bytes_per_second)))
    say(len(cases), len(cases))
    return found


def release(device: torch.device) -> None:
    """Give back the memory of what is no longer used: captured passes and their runner refer to each other."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _median_ms(runner: CudaRunner, case: Case, clock: Clock, repeats: int) -> float:
    fill(runner, case)
    x = tree_pass(runner, case)
    slots = list(range(case.batch))
    nothing: list[list[int]] = [[] for _ in slots]

    def run() -> None:
        for _ in range(IN_A_ROW):
            runner.execute(x)
            runner.commit(slots, nothing, nothing)

    seconds = [clock(run) for _ in range(WARM_UP + repeats)][WARM_UP:]
    return 1000 * (percentile(seconds, 50) or 0.0) / IN_A_ROW


def fill(runner: CudaRunner, case: Case) -> None:
    """A context of random tokens in every slot, no two alike: shared entries would be read from a cache on the chip."""
    noise = np.random.default_rng(0)
    for slot in range(case.batch):
        ids: list[int] = noise.integers(0, runner.info.vocab_size, case.context).tolist()
        done = runner.admit(slot, [*ids, 0], 0)
        while done < case.context:
            chunk = ids[done : done + CHUNK]
            runner.execute(
                _flat([(slot, done, chunk, list(range(-1, len(chunk) - 1)), len(chunk))], runner, want=False)
            )
            runner.commit([slot], [list(range(len(chunk)))], [chunk])
            done += len(chunk)


def tree_pass(runner: CudaRunner, case: Case) -> ForwardInput:
    """Each node a child of a random earlier one; the first is the root."""
    noise = np.random.default_rng(1)
    parts: list[tuple[int, int, list[int], list[int], int]] = []
    for slot in range(case.batch):
        ids: list[int] = noise.integers(0, runner.info.vocab_size, case.nodes).tolist()
        parents = [-1, *(int(noise.integers(0, i)) for i in range(1, case.nodes))]
        parts.append((slot, case.context, ids, parents, 1))
    return _flat(parts, runner, want=True)


def _flat(
    parts: Sequence[tuple[int, int, list[int], list[int], int]], runner: CudaRunner, *, want: bool
) -> ForwardInput:
    columns: list[list[int]] = [[], [], [], [], []]
    spans: list[Span] = []
    for slot, done, ids, parents, line in parts:
        depths: list[int] = []
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        start = len(columns[0])
        spans.append(Span(slot, start, start + len(ids), done, 0, line))
        own = (ids, [slot] * len(ids), [done + d for d in depths], list(range(len(ids))), parents)
        for column, more in zip(columns, own, strict=True):
            column += more
    device = runner.info.device
    flat = (put(column, device) for column in columns)
    wanted = put(list(range(len(columns[0]))), device) if want else put([], device)
    return ForwardInput(*flat, want=wanted, spans=tuple(spans))

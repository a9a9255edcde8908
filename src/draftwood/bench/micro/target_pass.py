"""bench pass: the time of one target pass by its number of nodes, and, on a CPU, the time to read the weights alone.

Every repeat runs every case once, in an order that rotates and reverses, so that other processes disturb all cases alike.
Ratios to the pass of one token are taken within a repeat.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.bench.statistics import Ratio, percentile, ratio_of_pairs
from draftwood.core import host
from draftwood.core.forward import ALL, ForwardInput, LayerPlan
from draftwood.core.host_tree import HostTree
from draftwood.core.model_info import CPU
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Runner
from draftwood.core.score import KnownTokens, assemble_lists
from draftwood.errors import OptionError
from draftwood.kernels.cpu.library import Library
from draftwood.models.backends.choose import open_library
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.models.backends.int8_weights import PRODUCTS, Int8Weights
from draftwood.models.backends.large_pages import large_pages
from draftwood.models.backends.quantised_blocks import BLOCK
from draftwood.models.backends.quantised_blocks.kinds import FLOATS, WIDE
from draftwood.models.loading.load import Loaded
from draftwood.recipes.easy_spec import grouped
from draftwood.runners.open import runner_of

CHAIN, TREE = "chain", "tree"
LEAST = 768 * 2**20  # bytes, more than any last-level cache holds
WARM_UP = 3
PROBE_EVERY = 4  # repeats
AGAIN = 10  # reads before the timed one: after a long stream, caches keep a buffer only after several reads
TIMED_BY_PART = (1, 16)  # nodes of the passes that are timed by part
SEED = 0

Say = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of pass: `nodes` tokens after `context` committed tokens, with logits for all nodes. `group`: of so many
    layers the attentions read one input."""

    context: int
    nodes: int
    shape: str = CHAIN
    group: int = 1

    def plan(self, num_layers: int) -> LayerPlan:
        return grouped(num_layers, self.group)


@dataclass(frozen=True, slots=True)
class Timed:
    """Median and quartiles in milliseconds; `ratio`: to the one-token pass after the same context."""

    case: Case
    ms: float
    low: float
    high: float
    ratio: Ratio | None

    @property
    def nodes_per_second(self) -> float:
        return 1000 * self.case.nodes / self.ms


@dataclass(frozen=True, slots=True)
class Floor:
    """Lower bounds of a pass after a context: all its bytes at the measured speed of reading, and all its products of bytes
    at the measured rate of the instruction that computes them."""

    context: int
    bytes: int
    from_memory: float  # ms
    from_cache: float  # ms, if a cache of the model's size holds everything
    arithmetic: float | None = None  # ms a node; None where other units compute the products

    def least(self, nodes: int) -> float:
        """Milliseconds: the larger of both."""
        return max(self.from_memory, nodes * (self.arithmetic or 0.0))


@dataclass(frozen=True, slots=True)
class Parts:
    """Milliseconds by part, each the median difference to the same pass without it. They need not add up."""

    case: Case
    ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """`floors` and `bandwidth` are empty on a GPU: its memory is not probed."""

    rows: list[Timed]
    floors: list[Floor]
    parts: list[Parts]
    bandwidth: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])  # bytes per second


def measure(
    loaded: Loaded,
    sizes: Sequence[int],
    contexts: Sequence[int],
    *,
    groups: Sequence[int] = (),
    repeats: int = 60,
    probe: int = LEAST,
    say: Say = lambda done, total: None,
) -> Measured:
    """Times of all cases. `groups`: layers whose attentions read one input, each number a case of its own. `probe`: bytes of
    the buffer that is read from memory, at least three times the model."""
    info = loaded.info
    if max(groups, default=1) > 1 and not info.layer_ranges:
        raise OptionError(f"groups: {info.name or 'this model'} runs all of its layers or none\nhint: leave groups out")
    stage = Stage(runner_of(loaded), contexts, max(sizes))
    cases = all_cases(sizes, contexts, groups)
    runs: dict[Any, Callable[[], None]] = {case: stage.runner(case, case.plan(info.num_layers)) for case in cases}
    looked = [Case(contexts[0], nodes) for nodes in TIMED_BY_PART if Case(contexts[0], nodes) in cases]
    for case in looked if info.layer_ranges else ():
        for name, plan, head in without(info.num_layers):
            runs[case, name] = stage.runner(case, plan, head=head)
    size = weight_bytes(loaded)
    probes = {"memory": Probe(max(probe, 3 * size)), "cache": Probe(size)} if host.on_host(info.device) else {}
    needed = dot_products(loaded.model)
    dots = Dots(loaded.model.library) if needed and probes else None
    reading: dict[str, Callable[[], int]] = {name: each.read for name, each in probes.items()}
    if dots is not None:
        reading["dots"] = dots.run
    times: dict[Any, list[float]] = {key: [] for key in [*runs, *reading]}
    say(0, repeats)
    for turn in range(-WARM_UP, repeats):
        found = {key: clock(runs[key], info.device) for key in order(list(runs), turn)}
        if probes and turn >= 0 and turn % PROBE_EVERY == 0:
            for _ in range(AGAIN):
                probes["cache"].read()
            found |= {name: clock(read) for name, read in reading.items()}
            for _ in range(AGAIN):  # refills the cache after the long read, so that no case is slowed by it
                runs[cases[0]]()
        if turn >= 0:
            for key, seconds in found.items():
                times[key].append(seconds)
            say(turn + 1, repeats)
    reads = [(context, size + context * entry_bytes(loaded.model)) for context in contexts]
    bandwidth = {name: spread([each.bytes / s for s in times[name]]) for name, each in probes.items()}
    arithmetic = None if dots is None else 1000 * needed * spread(times["dots"])["median"] / dots.total
    return Measured(
        rows=[timed(case, times) for case in cases],
        floors=[
            Floor(c, n, 1000 * n / bandwidth["memory"]["median"], 1000 * n / bandwidth["cache"]["median"], arithmetic)
            for c, n in reads
            if bandwidth
        ],
        parts=[parts(case, times) for case in looked if info.layer_ranges],
        bandwidth=bandwidth,
    )


def all_cases(sizes: Sequence[int], contexts: Sequence[int], groups: Sequence[int] = ()) -> list[Case]:
    """Chains of every size, trees of three nodes and more, and chains over groups of layers. The one-token pass is always
    included."""
    counts = sorted({1, *sizes})
    shapes = [(n, shape, 1) for n in counts for shape in ((CHAIN, TREE) if n > 2 else (CHAIN,))]
    shapes += [(n, CHAIN, group) for group in groups if group > 1 for n in counts]
    return [Case(context, n, shape, group) for context in contexts for n, shape, group in shapes]


def order(keys: list[Any], turn: int) -> list[Any]:
    """The list, the list reversed, then the same rotated by one: no case always follows the same other case."""
    at = turn // 2 % len(keys)
    turned = keys[at:] + keys[:at]
    return turned[::-1] if turn % 2 else turned


def clock(run: Callable[[], Any], device: torch.device = CPU) -> float:
    """Seconds of a run. On a GPU it only enqueues work, so the clock waits for that before and after it."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    wait(device)
    start = perf_counter()
    run()
    wait(device)
    return perf_counter() - start


class Stage:
    """A cache whose slots hold contexts of random tokens. Runs leave the committed entries unchanged."""

    def __init__(self, target: Runner, contexts: Sequence[int], most: int) -> None:
        longest = max(contexts) + most
        if longest > target.info.max_positions:
            said = f"{max(contexts)} tokens and {most} nodes are {longest} positions"
            raise OptionError(f"{said}, the model holds {target.info.max_positions}\nhint: a smaller context")
        self.contexts, self.target = list(contexts), target.open(len(contexts), longest)
        self.device = target.info.device
        self.noise = np.random.default_rng(SEED)
        for slot, context in enumerate(contexts):
            ids = self.tokens(context)
            done = self.target.admit(slot, [*ids, 0])
            while done < context:
                chunk = ids[done : done + 512]
                self.target.execute(flat(slot, done, chunk, chain(len(chunk)), self.device, head=False))
                self.target.commit([slot], [list(range(len(chunk)))], [chunk])
                done += len(chunk)

    def tokens(self, count: int) -> list[int]:
        return self.noise.integers(0, self.target.info.vocab_size, count).tolist()

    def runner(self, case: Case, plan: LayerPlan = ALL, *, head: bool = True) -> Callable[[], None]:
        """A function that runs the pass. It also drops the staged entries, which takes microseconds."""
        slot = self.contexts.index(case.context)
        parents = chain(case.nodes) if case.shape == CHAIN else random_tree(case.nodes)
        x = flat(slot, case.context, self.tokens(case.nodes), parents, self.device, head=head)

        def run() -> None:
            self.target.execute(x, layers=plan)
            self.target.commit([slot], [[]], [[]])

        return run


def chain(nodes: int) -> list[int]:
    return list(range(-1, nodes - 1))


def random_tree(nodes: int, seed: int = SEED) -> list[int]:
    """Parents: each node is a child of an earlier node, all equally likely."""
    noise = np.random.default_rng(seed)
    return [-1, *(int(noise.integers(0, i)) for i in range(1, nodes))]


def flat(
    slot: int, done: int, ids: list[int], parents: list[int], device: torch.device = CPU, *, head: bool
) -> ForwardInput:
    """A tree of one slot after `done` committed tokens with logits at all nodes, or without `head` a chain with none."""
    roots = Proposal.roots(torch.tensor(ids[: int(head)], dtype=torch.int64))
    if head:
        roots = roots.with_given([ids[1:]], [parents[1:]], [[0.0] * (len(ids) - 1)])
    known = KnownTokens(slot, done, ids[:1] if head else ids)
    return assemble_lists([known], HostTree.of(roots.tree), device)[0]


def without(layers: int) -> list[tuple[str, LayerPlan, bool]]:
    """Passes without one part; the last one is without all of them."""
    every = frozenset(range(layers))
    return [
        ("head", ALL, False),
        ("attention", LayerPlan(skip_attention=every), True),
        ("mlp", LayerPlan(skip_mlp=every), True),
        ("rest", LayerPlan(skip_attention=every, skip_mlp=every), False),
    ]


class Probe:
    """A buffer that is read with all threads, in the same kind of memory as the weights."""

    def __init__(self, size: int, library: Library | None = None) -> None:
        self.words: Tensor = torch.frombuffer(large_pages(max(size, 8) // 8 * 8), dtype=torch.int64)
        self.words.fill_(1)  # pages that were never written are not in memory
        self.bytes = self.words.nbytes
        self.library = open_library() if library is None else library

    def read(self) -> int:
        """The sum of all words."""
        if self.library is None:
            return int(self.words.sum())
        self.library.threads(torch.get_num_threads())
        return self.library.calls.draftwood_read(self.words.data_ptr(), self.bytes)


class Dots:
    """Dot products of 16 weight rows and 4 columns on all threads."""

    def __init__(self, library: Library, count: int = 12 * 2**18) -> None:
        self.library, self.count = library, count

    @property
    def total(self) -> int:
        return self.count * torch.get_num_threads()

    def run(self) -> int:
        self.library.threads(torch.get_num_threads())
        return self.library.calls.draftwood_dots(self.count)


def dot_products(model: Any) -> int:
    """Dot products of bytes that a node needs; 0 where they are not what computes the products. Weights that are floats take
    as many multiplications of floats, at the same rate or a lower one."""
    if not isinstance(model, NativeDecoder) or model.library.level == "amx":
        return 0
    weights: Int8Weights = model.weights
    twice = WIDE if model.library.level == "avx2" else ()  # in two halves of a byte
    parts = [part for layer in weights.layers for p in layer.products.values() for part in p.parts]
    return sum(
        part.groups * part.blocks * (BLOCK if part.kind in FLOATS else BLOCK // 4 * (1 + (part.kind in twice)))
        for part in [*parts, weights.head]
    )


def weight_bytes(loaded: Loaded) -> int:
    """Bytes of weights that a pass reads: every matrix once, the embedding only where it is the head too."""
    model = loaded.model
    if isinstance(model, NativeDecoder):
        return model.weights.bytes_per_pass
    if not loaded.info.layer_ranges:
        table = model.net.get_input_embeddings().weight
        tied = table is model.net.get_output_embeddings().weight
        return sum(w.nbytes for w in model.net.parameters() if tied or w is not table)
    matrices = [getattr(layer, name) for layer in model.layers for name in PRODUCTS] + [model.lm_head]
    held = [getattr(m, name, None) for m in matrices for name in ("weight", "digits", "steps", "bias")]
    return sum(t.nbytes for t in held if isinstance(t, Tensor))


def entry_bytes(model: Any) -> int:
    """Bytes of one cache entry over all layers."""
    return sum(spec.heads * spec.width * spec.dtype.itemsize for spec in model.cache_specs)


def timed(case: Case, times: dict[Any, list[float]]) -> Timed:
    found = spread(times[case])
    ratio = ratio_of_pairs(times[case], times[Case(case.context, 1)])
    return Timed(case, 1000 * found["median"], 1000 * found["low"], 1000 * found["high"], ratio)


def parts(case: Case, times: dict[Any, list[float]]) -> Parts:
    whole = np.array(times[case])
    ms = {name: float(np.median(whole - np.array(times[case, name]))) for name in ("attention", "mlp", "head")}
    ms["rest"] = float(np.median(times[case, "rest"]))
    return Parts(case, {name: 1000 * seconds for name, seconds in ms.items()})


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = (percentile(values, q) or 0.0 for q in (25, 50, 75))
    return {"median": middle, "low": low, "high": high}

"""Layers in six kernels compute what models/decoder.py computes: with twins exactly, in float64; with the kernels, on a GPU
or in Triton's interpreter, up to rounding."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from device_passes import Pair, Part, as_pass, drawn, logits_of, text
from device_runs import ran
from draftwood import recipes
from draftwood.cache.paged import PagedCache
from draftwood.core.config import ModelConfig
from draftwood.core.forward import FINAL, ForwardInput, LayerPlan, Span
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.errors import OutOfBlocks
from draftwood.kernels.gpu.launch import runs_on
from draftwood.kernels.gpu.twins import Twins
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.runners.fused import FusedDecoder, fold_gains, unsupported
from draftwood.runners.fused_check import exact_copy, row_error
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder

# Rows of padding hold whatever memory held; nobody reads what is computed from it, but NumPy warns.
pytestmark = [pytest.mark.filterwarnings(f"ignore:{said}:RuntimeWarning") for said in ("invalid value", "overflow")]

SHAPES: dict[str, ModelConfig] = {
    "llama": CONFIG,
    "qwen2": replace(CONFIG, family="qwen2", qkv_bias=True),
    "qwen3": replace(CONFIG, family="qwen3", qk_norm=True, tie_embeddings=False),
}
WIDE = replace(CONFIG, hidden_size=64, head_dim=16, intermediate_size=48, num_layers=2, max_positions=512)


def pair(shape: str, slots: int = 4, capacity: int = 200) -> Pair:
    found = Pair.of(tiny_decoder(1, config=SHAPES[shape]), slots, capacity, Twins())
    assert isinstance(found.device.cache, PagedCache)
    return found


# --- the decoder, exactly


@pytest.mark.one_in(3)
@pytest.mark.parametrize("told", [True, False], ids=["unread", "lists"])
@pytest.mark.parametrize("shape", SHAPES)
def test_random_trees_and_chunks_of_several_slots_are_those_of_the_processor(shape: str, told: bool) -> None:
    rng = random.Random(list(SHAPES).index(shape))
    p = pair(shape, 5, 128)
    for slot in range(5):
        p.admit(slot, [1, 2, 3])
    for turn in range(8):
        slots = sorted(rng.sample(range(5), rng.randrange(1, 6)), key=lambda _: rng.random())
        most = 9 if turn < 3 else 2
        parts = [drawn(rng, slot, rng.randrange(1, most), rng.choice([0, 1, 3, 6, 13])) for slot in slots]
        p.run(parts, told=told)
        p.commit(parts, [part.path(rng.randrange(part.known - 1, len(part.ids))) for part in parts])
        p.device.check_integrity()


def test_prompts_ride_beside_trees_and_single_tokens() -> None:
    rng = random.Random(5)
    p = pair("llama", 4, 256)
    for slot in range(4):
        p.admit(slot, [1, 2])
    for sizes in ([150, 1, 20, 1], [1, 70, 4, 1], [1, 1, 64, 65]):
        parts = [drawn(rng, slot, size, 0 if size > 1 else 5) for slot, size in enumerate(sizes)]
        p.run(parts)
        p.commit(parts, [part.path(len(part.ids) - 1) for part in parts])


def test_trees_of_more_than_64_nodes() -> None:
    rng = random.Random(6)
    p = pair("llama", 2, 256)
    for slot in range(2):
        p.admit(slot, [1, 2])
    for nodes in ((100, 3), (70, 130)):
        parts = [drawn(rng, slot, 2, size) for slot, size in enumerate(nodes)]
        p.run(parts)
        p.commit(parts, [part.path(rng.randrange(len(part.ids))) for part in parts])


def test_levels_that_are_added_one_at_a_time_attend_to_their_own_path() -> None:
    rng = random.Random(11)
    p = pair("llama", 3, 64)
    for slot in (2, 0):
        p.admit(slot, [1, 2])
    for _ in range(3):
        whole = [drawn(rng, slot, 1 + rng.randrange(5), 0) for slot in (2, 0)]
        done = [p.cpu.length(part.slot) for part in whole]
        p.run(whole)
        for _ in range(3):
            width = rng.randrange(1, 4)
            grown = [grow(rng, part, width) for part in whole]
            p.agree(added(whole, grown, done), frozenset({2}))
            whole = grown
        p.commit(whole, [part.path(len(part.ids) - 1) for part in whole])


def grow(rng: random.Random, part: Part, width: int) -> Part:
    last = len(part.ids)
    parents = [rng.randrange(part.known - 1, last) for _ in range(width)]
    return replace(part, ids=part.ids + [rng.randrange(60) for _ in parents], parents=part.parents + parents)


def added(before: list[Part], after: list[Part], done: list[int]) -> ForwardInput:
    whole = as_pass(after, done)
    new: list[int] = []
    spans: list[Span] = []
    for old, span in zip(before, whole.spans, strict=True):
        first = len(old.ids)
        places = range(span.start + first, span.stop)
        spans.append(Span(span.slot, len(new), len(new) + len(places), span.done, first, span.line))
        new += places
    columns = (whole.ids, whole.slots, whole.positions, whole.entries, whole.parents)
    return ForwardInput(*(column[new] for column in columns), want=torch.arange(len(new)), spans=tuple(spans))


PLANS = {
    "first layers": LayerPlan(stop=2),
    "no layer": LayerPlan(stop=0),
    "skipped": LayerPlan(skip_attention=frozenset({0, 2}), skip_mlp=frozenset({1})),
    "together": LayerPlan(together=(range(1, 3),)),
    "together, one skipped": LayerPlan(together=(range(0, 4),), skip_attention=frozenset({1})),
}


@pytest.mark.parametrize("sizes", [(3, 2), (70, 2)], ids=["few", "many"])
@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_of_layers_is_that_of_the_processor(plan: str, sizes: tuple[int, int]) -> None:
    rng = random.Random(17)
    p = pair("llama", 2, 128)
    for slot in range(2):
        p.admit(slot, [1, 2])
    x = as_pass([drawn(rng, slot, known, 3) for slot, known in enumerate(sizes)], [0, 0])
    taps = {"no layer": {0}, "first layers": {1, 2, FINAL}, "together, one skipped": {0, 4}}.get(plan, {3, 4, FINAL})
    p.agree(x, frozenset(taps), layers=PLANS[plan])


def test_upper_layers_go_on_from_given_states() -> None:
    p = pair("qwen3", 2, 32)
    for slot in range(2):
        p.admit(slot, [1, 2])
    x = as_pass([text(0, [3, 4, 5]), text(1, [6])], [0, 0])
    below = p.agree(replace(x, want=x.want[:0]), layers=LayerPlan(stop=2))
    p.agree(replace(x, hidden=below.hidden), frozenset({2, 4, FINAL}), layers=LayerPlan(start=2))


def test_trees_at_the_end_of_a_slot_lose_what_has_no_entry_and_nothing_else() -> None:
    rng = random.Random(13)
    model, known = tiny_decoder(1), 18
    short, wide = (CudaRunner(model, operations=Twins()).open(2, size) for size in (20, 64))
    start = [drawn(rng, slot, known, 0) for slot in range(2)]
    for runner in (short, wide):
        for part in start:
            runner.admit(part.slot, [*part.ids, 0])
        runner.execute(as_pass(start, [0, 0]))
        runner.commit([0, 1], [list(range(known))] * 2, [part.ids for part in start])
    tree = Part(0, [1, 2, 3, 4, 5, 6], [-1, 0, 0, 0, 0, 0], 1)  # entries 18 .. 23 of 20
    found, right = (logits_of(runner.execute(as_pass([tree], [known]))) for runner in (short, wide))
    torch.testing.assert_close(found[:2], right[:2])
    for runner in (short, wide):
        runner.commit([0], [[0, 1]], [[1, 2]])
    with pytest.raises(OutOfBlocks):
        short.reserve([0], [1])
    assert logits_of(short.execute(as_pass([drawn(rng, 1, 1, 1)], [known]))).isfinite().all()


def test_a_pass_reads_nothing_and_neither_does_its_commit() -> None:
    rng = random.Random(19)
    runner = CudaRunner(tiny_decoder(1), operations=Twins()).open(4, 96)
    for slot in range(3):
        runner.admit(slot, [1, 2])
    for known in (5, 1):
        parts = [drawn(rng, slot, known if slot else 1, 3) for slot in range(3)]
        x = as_pass(parts, [runner.length(slot) for slot in range(3)])
        with as_if_on_a_device(), HostReads() as reads:
            runner.execute(x, taps=frozenset({1}))
            runner.commit([0, 1, 2], [[0], [0], [0]], [[part.ids[0]] for part in parts])
        assert reads.total == 0, reads.by_name


def test_stock_operations_read_a_cache_in_blocks_too() -> None:
    """What attends in its own way finds the entries by the same table."""
    rng = random.Random(23)
    model = tiny_decoder(1, config=replace(CONFIG, sliding_window=7))
    cache = PagedCache(model.cache_specs, slots=3, capacity=128)
    p = Pair(CpuRunner(model).open(3, 128), CudaRunner(model, cache=cache))
    for slot in range(3):
        p.admit(slot, [1, 2])
    for turn in range(6):
        parts = [drawn(rng, slot, 1 + turn % 3 * 9, rng.choice([0, 3, 6])) for slot in rng.sample(range(3), 2)]
        p.run(parts)
        p.agree(as_pass(parts, [p.cpu.length(part.slot) for part in parts]), layers=PLANS["together"])
        p.run(parts)
        p.commit(parts, [part.path(len(part.ids) - 1) for part in parts])
        cache.check_integrity()


def test_one_size_serves_many_lengths() -> None:
    runner = CudaRunner(tiny_decoder(1), operations=Twins()).open(1, 256)
    runner.admit(0, [1, 2])
    for _ in range(200):
        runner.execute(as_pass([text(0, [3])], [runner.length(0)]))
        runner.commit([0], [[0]], [[3]])
    assert len(runner._captured) == 1


def test_weights_whose_gains_are_folded_are_the_same_function() -> None:
    model, once = tiny_decoder(1), tiny_decoder(1)
    fold_gains(once)
    ids = torch.tensor([3, 1])
    whole: list[Any] = []
    for each in (model, once):
        runner = CudaRunner(each).open(1, 8)
        runner.admit(0, [1, 2])
        whole.append(logits_of(runner.execute(as_pass([text(0, ids.tolist())], [0]))))
    torch.testing.assert_close(*whole)
    first: Any = once.layers[0]
    held = first.qkv.weight.clone()
    fold_gains(once)
    assert torch.equal(first.qkv.weight, held), "only once"


def test_what_the_kernels_cannot_run_is_named() -> None:
    def of(**changes: Any) -> str:
        return unsupported(tiny_decoder(1, config=replace(WIDE, **changes), dtype=torch.float16))

    assert of() == ""
    assert of(sliding_window=4) == "a sliding window of 4"
    assert of(head_dim=24) == "heads of width 24"
    assert "bias" in of(out_bias=True) and "bias" in of(mlp_bias=True)
    assert of(intermediate_size=40) == "a matrix of 64 x 40, which no tile divides"
    assert unsupported(tiny_decoder(1, config=WIDE)) == "dtype float64"


# --- the engine


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "name",
    ["prompt_lookup", "lookahead", "suffix_decoding:nodes=16", "speculative_sampling:draft=first:3:verifier=match"],
)
def test_texts_of_the_engine_are_those_of_the_processor(name: str) -> None:
    """Chains, trees, a draft of the first layers, prompts in chunks; one read a round."""

    def build(target: Any) -> Recipe:
        return recipes.build(name, target)

    prompts = [[1, 2, 3, 1, 2, 3, 1, 2], [5, 6, 7, 8] * 6, [9]]
    params = SamplingParams(max_tokens=24)
    model = tiny_decoder(2)
    found = ran(CudaRunner(model, operations=Twins()), build, prompts, params, chunk=7)
    right = ran(CpuRunner(model), build, prompts, params, chunk=7)
    assert found.texts == right.texts and all(len(text) == 24 for text in found.texts)
    assert found.disabled == {None}
    if name != "lookahead":  # its windows are read, too, where they are worth it
        assert found.read_once(), found.by_round()


def test_texts_are_the_same_where_blocks_are_scarce() -> None:
    """Prompts that begin alike, requests that are preempted and come back, blocks of free slots that are taken."""
    rng, model = random.Random(0), tiny_decoder(2)
    text = [rng.randrange(60) for _ in range(30)]
    prompts = [text[: rng.randrange(1, 30)] + [rng.randrange(60) for _ in range(rng.randrange(20))] for _ in range(10)]
    runs = [
        ran(runner, lambda target: recipes.build("suffix_decoding:nodes=16", target), prompts, SamplingParams(max_tokens=16),
            slots=4, capacity=72, chunk=9, max_cache_tokens=80, counted=False)
        for runner in (CudaRunner(model, operations=Twins()), CpuRunner(model))
    ]  # fmt: skip
    assert runs[0].texts == runs[1].texts
    assert sum(r.stats.preempted for r in runs[0].requests) > 3 and runs[0].disabled == {None}


# --- the kernels


def kernels(invariant: bool = False) -> Any:
    pytest.importorskip("triton")
    from draftwood.kernels.gpu.operations import Operations

    return Operations(invariant)


def half(shape: str) -> Any:
    from gpu_cases import DEVICE, DTYPE

    changes = {"family": SHAPES[shape].family, "qkv_bias": shape == "qwen2", "qk_norm": shape == "qwen3"}
    return tiny_decoder(1, config=replace(WIDE, **changes), dtype=DTYPE).to(DEVICE)  # type: ignore[arg-type]


def whole_rounds(operations: Any, shape: str) -> tuple[float, float]:
    """A prompt, trees, levels and single tokens of two slots: the greatest errors of the kernels and of stock operations."""
    model, rng, errors = half(shape), random.Random(3), [0.0, 0.0]
    fused = CudaRunner(model, operations=operations).open(2, 192)
    runners = fused, CudaRunner(model).stock(2, 192), CudaRunner(exact_copy(model, torch.float64)).stock(2, 192)
    for runner in runners:
        for slot in range(2):
            runner.admit(slot, [1, 2])
    for sizes in (((66, 0), (3, 0)), ((1, 9), (2, 4)), ((1, 0), (1, 0))):
        parts = [drawn(rng, slot, *size) for slot, size in enumerate(sizes)]
        done = [fused.length(slot) for slot in range(2)]
        passes = [as_pass(parts, done)]
        if sizes[0] == (1, 9):
            grown = [grow(rng, part, 2) for part in parts]
            passes.append(added(parts, grown, done))
            parts = grown
        for x in passes:
            x = on(x, model.device)
            given = x.starting_from(model.embed(x.ids).double())
            right = runners[2].execute(replace(given, want=x.want[:0]), taps=frozenset({1, FINAL}))
            for i, runner in enumerate(runners[:2]):
                found = runner.execute(x, taps=frozenset({1, FINAL}))
                errors[i] = max(errors[i], *(row_error(y, right.features[tap]) for tap, y in found.features.items()))
                assert row_error(logits_of(found), model.head(found.hidden)) < 0.01
        paths = [part.path(len(part.ids) - 1) for part in parts]
        for runner in runners:
            runner.commit([0, 1], paths, [[part.ids[e] for e in path] for part, path in zip(parts, paths, strict=True)])
    return errors[0], errors[1]


def on(x: ForwardInput, device: torch.device) -> ForwardInput:
    columns = (x.ids, x.slots, x.positions, x.entries, x.parents, x.want)
    ids, slots, positions, entries, parents, want = (column.to(device) for column in columns)
    return ForwardInput(ids, slots, positions, entries, parents, want, spans=x.spans)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["llama", *(pytest.param(x, marks=pytest.mark.long) for x in ("qwen2", "qwen3"))])
def test_whole_rounds_through_the_kernels_are_those_of_stock_operations(shape: str) -> None:
    ours, stock = whole_rounds(kernels(), shape)
    assert ours < 2 * stock + 0.002 < 0.2


@pytest.mark.slow
def test_a_kernel_that_rotates_by_other_angles_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin."""
    before = FusedDecoder.prepare

    def turned(self: FusedDecoder) -> None:
        before(self)
        self._angles = self._angles.roll(1, dims=0)

    monkeypatch.setattr(FusedDecoder, "prepare", turned)
    ours, stock = whole_rounds(kernels(), "llama")
    assert ours > 0.2 > 2 * stock


@pytest.mark.gpu
@pytest.mark.parametrize("invariant", [False, True])
def test_on_a_gpu_the_check_accepts_captured_passes_of_our_kernels(invariant: bool) -> None:
    model = half("llama")
    if not runs_on(model.device):
        pytest.skip("compute capability below 9")
    runner = CudaRunner(model, invariant=invariant)
    assert runner.operations() is not None
    opened = runner.open(2, 128)
    assert type(opened.cache) is PagedCache and opened.info.device.type == "cuda"

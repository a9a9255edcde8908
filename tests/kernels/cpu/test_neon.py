"""The kernels of 64-bit ARM, run by an emulator, give the bits that this machine's give."""

import shutil
from ctypes import byref, c_float
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import gguf_blocks
from batch_invariance import batch_invariance_faults
from draftwood.cache.dense import DenseCache
from draftwood.controllers.costs.cost import CostModel
from draftwood.controllers.fixed import Fixed
from draftwood.core.config import EngineConfig
from draftwood.core.forward import FINAL, ForwardInput
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.nets.make_drafter import feature_drafter
from draftwood.engine.engine import Engine
from draftwood.kernels.cpu import build
from draftwood.kernels.cpu.levels import LEVELS
from draftwood.kernels.cpu.library import Library
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.models.backends.int8_native_arguments import matrix
from draftwood.models.backends.int8_weights import from_tensors
from draftwood.models.backends.quantised_blocks import Kind, Packed
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from emulated import CLANG, GCC, MISSING, compiled, emulated
from mixed_blocks import mixed
from native_levels import BEST, kept_weights, opened

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(MISSING), reason=f"emulation of ARM needs {', '.join(MISSING)}"),
]
ARM = {level.name: level for level in LEVELS if level.name.startswith("neon") or level.name == "portable"}
NODES = (1, 2, 5, 16, 64)
WIDE = (Kind.Q8_0, Kind.IQ4_NL, Kind.IQ4_XS)  # whose levels have an offset that some levels keep and others take away
MODELS = {
    "llama": replace(CONFIG, num_heads=6, num_kv_heads=2, head_dim=48, hidden_size=96, intermediate_size=160),
    "qwen3, biases": replace(CONFIG, family="qwen3", qk_norm=True, qkv_bias=True, head_dim=80, num_kv_heads=2),
    "a window": replace(CONFIG, family="mistral", sliding_window=6, tie_embeddings=False),
    "caps and gelu": replace(CONFIG, activation="gelu_tanh", attention_cap=3.0, logit_cap=5.0, post_norms=True),
    "blocks of many types": None,
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory):
    """Compiles a level; `change`: of a source file, from one text to another."""

    @cache
    def make(level: str, *change: str, compiler: tuple[str, ...] = GCC) -> Path:
        folder = tmp_path_factory.mktemp(level)
        sources = build.SOURCES
        if change:
            sources = Path(shutil.copytree(sources, folder / "source"))
            file, old, new = change
            text = (sources / file).read_text("utf-8")
            assert text.count(old) == 1, old
            (sources / file).write_text(text.replace(old, new), "utf-8")
        return compiled(ARM[level], folder, sources, compiler)

    return make


@pytest.fixture
def run(program):
    """Starts a level in the emulator; ends it with the test."""
    started: list[Library] = []

    def start(level: str, *change: str, compiler: tuple[str, ...] = GCC) -> Library:
        started.append(emulated(ARM[level], program(level, *change, compiler=compiler)))
        return started[-1]

    yield start
    for each in started:
        each.calls.close()  # type: ignore[attr-defined]


def drawn(count: int, columns: int) -> Tensor:
    """Some have blocks that stand out, one is zeros."""
    x = torch.randn(count, columns, generator=torch.Generator().manual_seed(count))
    x[::3, columns // 2] *= 50
    x[7:8] = 0
    return x


def product(library: Library, packed: Packed, x: Tensor) -> Tensor:
    made, y = matrix(packed), torch.full((len(x), packed.rows), 7.0)
    library.calls.draftwood_product(byref(made), x.data_ptr(), len(x), y.data_ptr())
    return y


def embedded(library: Library, packed: Packed) -> Tensor:
    made, ids, y = matrix(packed), torch.arange(packed.rows), torch.empty(packed.rows, packed.columns)
    assert library.calls.draftwood_embed(byref(made), ids.data_ptr(), len(ids), y.data_ptr()) == 0
    return y


def differing(library: Library, kind: Kind) -> list[int]:
    """The numbers of nodes at which products have other bits than here."""
    packed = gguf_blocks.packed(kind, 40, 512)
    inputs = [drawn(nodes, 512) for nodes in NODES]
    both = [[product(each, packed, x) for x in inputs] for each in (library, opened(BEST))]
    return [nodes for nodes, a, b in zip(NODES, *both, strict=True) if not torch.equal(a, b)]


@pytest.mark.parametrize("level", ARM)
def test_level_passes_its_own_test(run, level: str):
    assert run(level).calls.draftwood_try() == 0


@pytest.mark.parametrize("level", ARM)
@pytest.mark.parametrize("kind", Kind)
def test_products_and_rows_have_the_bits_of_this_machine(run, level: str, kind: Kind):
    library = run(level)
    assert differing(library, kind) == []
    packed = gguf_blocks.packed(kind, 40, 512)
    assert torch.equal(embedded(library, packed), embedded(opened(BEST), packed))


@pytest.mark.parametrize("level", ["neon-dotprod", "portable"])
def test_wide_levels_without_their_sign_have_other_bits(run, level: str):
    wrong = run(level, "neon_integers.hpp", "veorq_u8(w.v[i], vdupq_n_u8(128))", "w.v[i]")
    assert all(differing(wrong, kind) == list(NODES) for kind in WIDE)
    assert all(differing(wrong, kind) == [] for kind in Kind if kind not in WIDE)


@pytest.mark.parametrize("level", ARM)
def test_rows_that_are_no_numbers_stay_alone(run, level: str):
    packed, x = gguf_blocks.packed(Kind.Q8_0, 40, 512), drawn(5, 512)
    right = product(opened(BEST), packed, x)
    x[1, 3], x[4, 100] = torch.nan, torch.inf
    said = product(run(level), packed, x)
    assert said[[1, 4]].isnan().all() and torch.equal(said[[0, 2, 3]], right[[0, 2, 3]])


@pytest.mark.parametrize("level", ARM)
def test_logits_are_capped_and_drawn_from_alike(run, level: str):
    noise = torch.Generator().manual_seed(3)
    logits, uniforms = torch.randn(5, 1000, generator=noise) * 4, torch.rand(5, 3, generator=noise, dtype=torch.float64)
    heat, top_p, min_p = torch.full((5,), 0.8), torch.full((5,), 0.9, dtype=torch.float64), torch.full((5,), 0.01)
    at = torch.arange(5)

    def said(library: Library) -> list[Tensor]:
        calls, y = library.calls, logits.clone()
        calls.draftwood_cap(y.data_ptr(), 1000, 5, 1000, 7.0)
        token, prob, best = torch.empty(5, dtype=torch.int64), torch.empty(5, 9), torch.empty(5, 9, dtype=torch.int64)
        ends = (top_p.data_ptr(), min_p.data_ptr(), None, uniforms.data_ptr(), token.data_ptr())
        assert calls.draftwood_pick(y.data_ptr(), 5, 1000, at.data_ptr(), 5, 1000, heat.data_ptr(), *ends) == 0
        temperatures = (c_float * 5)(*heat.tolist())
        calls.draftwood_rank(y.data_ptr(), 1000, 5, 1000, temperatures, 9, None, prob.data_ptr(), best.data_ptr())
        return [y, token, prob, best]

    assert all(torch.equal(a, b) for a, b in zip(said(run(level)), said(opened(BEST)), strict=True))


# --- whole passes


def model(name: str, library: Library) -> NativeDecoder:
    config = MODELS[name]
    made = mixed(head=Kind.Q5_K) if config is None else (config, from_tensors(config, kept_weights(config)))
    return NativeDecoder(*made, library)


def passes(each: NativeDecoder) -> dict[str, Tensor]:
    """A prompt in two chunks, then a tree behind it: logits, residuals of all layers and the KV entries."""
    noise = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 60, (40,), generator=noise)
    cache = DenseCache(each.cache_specs, slots=2, capacity=64)
    cache.admit(0, [])
    taps, found = frozenset({FINAL, *range(each.num_layers + 1)}), dict[str, Tensor]()
    for first, last in ((0, 21), (21, 22), (22, 40)):
        rows = torch.arange(last - first)
        tree = (rows - 1) // 2 if last == 40 else rows - 1
        depth = torch.floor(torch.log2(rows + 1.0)).long() if last == 40 else rows
        x = ForwardInput(ids[first:last], rows * 0, first + depth, rows, tree.clamp_min(-1), rows)
        output = each.forward(x, cache, taps=taps)
        found |= {f"{last} {tap}": y for tap, y in output.features.items()} | {f"{last} logits": output.logits}
        cache.commit([0], [list(range(last - first)) if last < 40 else []])
    return found | {spec.name: cache.store(spec.name).clone() for spec in each.cache_specs}


@pytest.mark.parametrize("level", ARM)
@pytest.mark.parametrize("name", MODELS)
def test_passes_have_the_bits_of_this_machine(run, level: str, name: str):
    right = passes(model(name, opened(BEST)))
    said = passes(model(name, run(level)))
    assert said.keys() == right.keys()
    assert [key for key in right if not torch.equal(said[key], right[key])] == []


@pytest.mark.skipif(shutil.which(CLANG[0]) is None, reason="clang++ is not installed")
def test_another_compiler_gives_the_same_bits(run):
    library = run("neon-dotprod", compiler=CLANG)
    assert library.calls.draftwood_try() == 0
    right, said = (passes(model("blocks of many types", each)) for each in (opened(BEST), library))
    assert [key for key in right if not torch.equal(said[key], right[key])] == []


@pytest.mark.parametrize("level", ["neon-i8mm", "neon-dotprod"])
def test_token_has_the_same_bits_in_every_pass(run, level: str):
    library = run(level)
    found = batch_invariance_faults(model("blocks of many types", library), sizes=(1, 5, 16), length=24, trees=3)
    assert list(found) == []


OTHER_ORDER = "a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3])", "a.v[0], a.v[1]), vaddq_f32(a.v[2], a.v[3])"
TWO_ROUNDINGS = "vfmaq_f32(c.v[i], a.v[i], b.v[i])", "vaddq_f32(c.v[i], vmulq_f32(a.v[i], b.v[i]))"


@pytest.mark.parametrize("change", [OTHER_ORDER, TWO_ROUNDINGS], ids=["another order of a sum", "two roundings"])
def test_other_arithmetic_would_show(run, change: tuple[str, str]):
    right = passes(model("llama", opened(BEST)))
    said = passes(model("llama", run("neon-dotprod", "neon.hpp", *change)))
    assert not torch.equal(said["40 logits"], right["40 logits"])


# --- texts


def answers(library: Library) -> list[tuple[list[int], int, list[int]]]:
    """Greedy and drawn texts that a head drafts for: what they say, and how much was drafted and accepted."""
    runner = CpuRunner(model("llama", library))
    drafter = feature_drafter(random_head("eagle3", runner, rows=37), runner)
    recipe = Recipe(
        drafter=drafter,
        policy=Static((3, 2, 1), draw=Draw.GIVEN),
        verifier=Match(),
        controller=Fixed(depth=3, nodes=12),
    )
    config = EngineConfig(max_num_seqs=3, max_model_len=CONFIG.max_positions, max_prefill_tokens=16)
    engine = Engine(runner.open(3, CONFIG.max_positions), recipe, cost_model=CostModel(), config=config)
    params = [SamplingParams(temperature=0.8 * i, top_p=0.9, seed=i, max_tokens=12) for i in range(2)]
    requests = [Request(i, [5, 7, 11 + i, 2], each, CONFIG.vocab_size) for i, each in enumerate(params)]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
    assert not any(request.error for request in requests)
    return [(list(r.output), r.stats.draft_tokens, list(r.stats.accepted)) for r in requests]


def test_texts_and_drafts_are_those_of_this_machine(run):
    assert answers(run("neon-dotprod")) == answers(opened(BEST))

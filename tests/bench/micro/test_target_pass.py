from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.bench.micro.target_pass import (
    CHAIN,
    TREE,
    Case,
    Dots,
    Floor,
    Probe,
    Stage,
    all_cases,
    chain,
    clock,
    dot_products,
    entry_bytes,
    flat,
    measure,
    order,
    random_tree,
    weight_bytes,
)
from draftwood.cache.dense import DenseCache
from draftwood.core.forward import ALL, LayerPlan
from draftwood.errors import OptionError
from draftwood.kernels.cpu.levels import SWITCH
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.models.backends.quantised_blocks import Kind
from draftwood.models.decoder import Decoder
from draftwood.models.loading.load import Loaded, load
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.host_reads import as_if_on_a_device
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder, tiny_runner
from mixed_blocks import mixed
from native_levels import BEST, opened


def test_every_size_is_a_chain_and_where_it_can_branch_a_tree():
    cases = all_cases([4, 2], [8, 16])
    assert [(c.nodes, c.shape) for c in cases if c.context == 8] == [(1, CHAIN), (2, CHAIN), (4, CHAIN), (4, TREE)]
    assert len(cases) == 8


def test_groups_of_layers_are_chains_of_every_size():
    more = [c for c in all_cases([4, 2], [8], [1, 3]) if c.group > 1]
    assert [(c.nodes, c.shape, c.group) for c in more] == [(1, CHAIN, 3), (2, CHAIN, 3), (4, CHAIN, 3)]
    assert more[0].plan(8) == LayerPlan(together=(range(1, 4), range(4, 7))) and Case(8, 1).plan(8) == ALL


def test_over_a_few_repeats_every_case_goes_first_and_last():
    keys = list("abcd")
    orders = [order(keys, turn) for turn in range(8)]
    assert all(sorted(o) == keys for o in orders)
    assert {o[0] for o in orders} == {o[-1] for o in orders} == set(keys)
    followers = {o[o.index("a") + 1] for o in orders if o[-1] != "a"}
    assert len(followers) > 1


def test_a_random_tree_is_the_same_every_time_and_branches():
    parents = random_tree(32)
    assert parents == random_tree(32) != random_tree(32, seed=1)
    assert parents[0] == -1 and all(0 <= p < i for i, p in enumerate(parents) if i)
    assert parents != chain(32) and chain(3) == [-1, 0, 1]


def test_positions_follow_the_depth_of_the_tree():
    x = flat(1, 10, [5, 6, 7, 8], [-1, 0, 0, 2], head=True)
    assert x.positions.tolist() == [10, 11, 11, 12] and x.want.tolist() == [0, 1, 2, 3]
    assert len(flat(0, 0, [5], [-1], head=False).want) == 0


def test_a_run_leaves_the_committed_entries_as_they_were():
    stage = Stage(tiny_runner(), [6, 9], 4)
    before = {name: held(stage).store(name)[:, :, :6].clone() for name in ("k0", "v3")}
    for case in all_cases([4], [6, 9]):
        stage.runner(case)()
    assert [stage.target.length(slot) for slot in (0, 1)] == [6, 9]
    stage.target.check_integrity()
    for name, rows in before.items():
        assert torch.equal(held(stage).store(name)[:, :, :6], rows)


def test_what_is_run_is_a_pass_over_the_whole_context():
    target = tiny_runner()
    stage = Stage(target, [6], 3)
    seen = stage.target.execute(flat(0, 6, [1, 2, 3], [-1, 0, 0], head=True))
    text = held(stage).text(0)
    alone = _starting_with(target, text[0]).execute(flat(0, 1, [*text[1:], 1, 3], chain(7), head=True))
    assert torch.allclose(seen.logits[2], alone.logits[-1])


def _starting_with(target: CpuRunner, token: int) -> CpuRunner:
    runner = target.open(1, 32)
    runner.admit(0, [token, 0])
    runner.execute(flat(0, 0, [token], [-1], head=False))
    runner.commit([0], [[0]], [[token]])
    return runner


def held(stage: Stage) -> DenseCache:
    assert isinstance(stage.target, CpuRunner)
    return stage.target.cache


def test_a_context_the_model_cannot_hold_is_refused():
    with pytest.raises(OptionError, match="260 positions, the model holds 256"):
        Stage(tiny_runner(), [250], 10)


@pytest.mark.parametrize("level", ["auto", "stock"])
@pytest.mark.parametrize("words", [1, 1000, 40_007])
def test_the_probe_reads_every_word(level: str, words: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(SWITCH, level)
    probe = Probe(8 * words)
    assert probe.bytes == 8 * words
    probe.words.copy_(torch.arange(words))
    assert probe.read() == sum(range(words))
    probe.words[-1] += 5
    assert probe.read() == sum(range(words)) + 5


def test_a_node_needs_a_dot_product_for_16_rows_and_4_columns():
    config, weights = mixed(head=Kind.Q8_0)
    layers = weights.layers[:2]  # of integers
    model = NativeDecoder(config, replace(weights, layers=layers), opened(BEST))
    columns = {"qkv": 256, "out": 256, "gate_up": 256, "down": 512}
    rows = {"qkv": 512, "out": 256, "gate_up": 1024, "down": 256}
    layer = sum(rows[name] * columns[name] for name in rows)
    head = -(-config.vocab_size // 16) * 16 * 256
    assert dot_products(model) == (0 if BEST == "amx" else (2 * layer + head) // 64) or BEST == "avx2"
    assert dot_products(tiny_decoder()) == 0


def test_dot_products_are_run_on_every_thread():
    dots = Dots(opened(BEST), 1200)
    try:
        dots.run()
        assert dots.total == 1200 * torch.get_num_threads()
    finally:
        dots.library.threads(1)


def test_the_bound_is_the_larger_of_memory_and_arithmetic():
    assert [Floor(8, 100, 10.0, 5.0, 2.0).least(n) for n in (1, 5, 6)] == [10, 10, 12]
    assert Floor(8, 100, 10.0, 5.0).least(64) == 10


def in_memory(model: Decoder) -> Loaded:
    """As if it had been loaded. Nobody asks for its tokenizer here."""
    none: Any = None
    return Loaded("tiny", model.config, model, none, "")


def test_a_pass_reads_each_matrix_once_and_a_tied_embedding_as_the_head():
    c = CONFIG
    loaded = in_memory(tiny_decoder(dtype=torch.float32))
    layer = (c.num_heads + 2 * c.num_kv_heads + c.num_heads) * c.head_dim * c.hidden_size
    layer += 3 * c.hidden_size * c.intermediate_size
    assert weight_bytes(loaded) == 4 * (c.num_layers * layer + c.vocab_size * c.hidden_size)
    assert entry_bytes(loaded.model) == 4 * c.num_layers * 2 * c.num_kv_heads * c.head_dim


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_times_floors_and_parts_come_together(folder, dtype: str):
    loaded = load(str(folder), dtype=dtype)
    calls: list[tuple[int, int]] = []
    found = measure(
        loaded,
        [1, 4, 16],
        [8, 32],
        groups=[2],
        repeats=3,
        probe=2**20,
        say=lambda done, total: calls.append((done, total)),
    )
    assert calls == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert [row.case for row in found.rows] == all_cases([1, 4, 16], [8, 32], [2])
    for row in found.rows:
        assert row.ratio is not None and row.ratio.pairs == 3 and row.low <= row.ms <= row.high
        if row.case.nodes == row.case.group == 1:
            assert row.ratio.value == row.ratio.low == row.ratio.high == 1
    short, long = found.floors
    assert long.bytes - short.bytes == 24 * entry_bytes(loaded.model)
    assert short.from_memory == pytest.approx(1000 * short.bytes / found.bandwidth["memory"]["median"])
    assert [(p.case, list(p.ms)) for p in found.parts] == [
        (Case(8, nodes), ["attention", "mlp", "head", "rest"]) for nodes in (1, 16)
    ]
    assert all(np.isfinite(list(p.ms.values())).all() for p in found.parts)


def test_clock_waits_for_a_gpu_before_and_after_a_run(monkeypatch: pytest.MonkeyPatch):
    seen: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", seen.append)
    gpu = torch.device("cuda:1")
    assert clock(lambda: seen.append("run"), gpu) >= 0 and seen == [gpu, "run", gpu]
    assert clock(lambda: None) >= 0 and len(seen) == 3, "a CPU has nothing to wait for"


def test_memory_is_not_probed_on_a_device(folder):
    loaded = load(str(folder), dtype="float32", device="cpu")
    with as_if_on_a_device():
        found = measure(loaded, [1, 4], [8], repeats=1, probe=2**20)
    assert [row.case for row in found.rows] == all_cases([1, 4], [8]) and found.parts
    assert not found.floors and not found.bandwidth


def test_a_pass_is_put_on_its_device_and_the_host_knows_its_columns():
    x = flat(2, 5, [7, 8, 9], [-1, 0, 0], torch.device("meta"), head=True)
    assert {t.device.type for t in (x.ids, x.slots, x.positions, x.entries, x.parents, x.want)} == {"meta"}
    known = x.to_host()
    assert (known.ids, known.slots, known.entries, known.parents) == ([7, 8, 9], [2] * 3, [0, 1, 2], [-1, 0, 0])

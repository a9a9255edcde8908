"""A runner is its model, bit for bit, with a cache of its own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.cache.dense import DenseCache
from draftwood.core.forward import ALL, FINAL, ForwardInput, LayerPlan
from draftwood.core.protocols import Model, Runner
from draftwood.errors import EngineError, ModelError, OutOfBlocks
from draftwood.models.backends import int8_weights
from draftwood.models.backends.choose import int8_decoder
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.parts.table_model import TableModel, random_probs
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder, tiny_runner, tiny_weights

TEXT = [5, 7, 1, 3, 8]
#     0 ┬ 1 ─ 3
#       └ 2
TREE, PARENTS = [2, 9, 4, 6], [-1, 0, 0, 1]
MODELS: dict[str, Callable[[], Model]] = {
    "float64": lambda: tiny_decoder(1),
    "float32": lambda: tiny_decoder(1, dtype=torch.float32),
    "int8": lambda: int8_decoder(CONFIG, int8_weights.from_tensors(CONFIG, tiny_weights())),
    "table": lambda: TableModel(CONFIG.vocab_size, random_probs(CONFIG.vocab_size, 1)),
}


def chain(ids: list[int], slot: int = 0, done: int = 0) -> ForwardInput:
    at = torch.arange(len(ids))
    return ForwardInput(torch.tensor(ids), torch.full_like(at, slot), done + at, at, at - 1, want=at)


def tree(done: int) -> ForwardInput:
    at, depth = torch.arange(4), torch.tensor([0, 1, 1, 2])
    return ForwardInput(torch.tensor(TREE), at * 0, done + depth, at, torch.tensor(PARENTS), want=at)


def after_text(runner: CpuRunner, slot: int = 0) -> Any:
    """Run and commit the text; what the pass gave."""
    runner.admit(slot, [*TEXT, 0])
    output = runner.execute(chain(TEXT, slot))
    runner.commit([slot], [list(range(len(TEXT)))], [TEXT])
    return output


@pytest.mark.parametrize("name", MODELS)
def test_a_pass_is_that_of_the_model_to_the_bit(name: str) -> None:
    model = MODELS[name]()
    runner, cache = CpuRunner(model).open(2, 32), DenseCache(model.cache_specs, slots=2, capacity=32)
    cache.admit(0, [*TEXT, 0])
    layers = range(1 if name == "table" else CONFIG.num_layers + 1)
    taps = frozenset({FINAL, *layers})
    first, right = after_text(runner), model.forward(chain(TEXT), cache)
    cache.commit([0], [list(range(len(TEXT)))])
    pairs = [(first, right)]
    pairs.append((runner.execute(tree(len(TEXT)), taps=taps), model.forward(tree(len(TEXT)), cache, taps=taps)))
    for ours, theirs in pairs:
        assert torch.equal(ours.logits, theirs.logits) and torch.equal(ours.hidden, theirs.hidden)
        assert ours.features.keys() == theirs.features.keys()
        assert all(torch.equal(x, theirs.features[tap]) for tap, x in ours.features.items())
    runner.commit([0], [[0, 1, 3]], [[2, 9, 6]])
    cache.commit([0], [[0, 1, 3]])
    assert runner.cache.text(0) == cache.text(0) == [*TEXT, 2, 9, 6]
    for spec in model.cache_specs:
        ours, theirs = (each.store(spec.name)[0, :, : cache.length(0)] for each in (runner.cache, cache))
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("plan", [LayerPlan(stop=2), LayerPlan(skip_mlp=frozenset({1})), LayerPlan(stop=0)], ids=str)
def test_a_plan_of_layers_is_that_of_the_model(plan: LayerPlan) -> None:
    target = tiny_runner(1)
    outputs = []
    for layers in (plan, ALL):
        runner, cache = target.open(1, 16), DenseCache(target.model.cache_specs, slots=1, capacity=16)
        for each in (runner, cache):
            each.admit(0, [])
        ours, theirs = (
            runner.execute(chain(TEXT), layers=layers),
            target.model.forward(chain(TEXT), cache, layers=layers),
        )
        assert torch.equal(ours.hidden, theirs.hidden) and torch.equal(ours.logits, theirs.logits)
        outputs.append(ours.hidden)
    assert not torch.equal(*outputs), "and it matters"


def test_runners_share_weights_and_not_entries() -> None:
    weights = tiny_runner(1)
    one, other = weights.open(2, 16), weights.open(2, 16)
    assert one.model is other.model is weights.model and one.info is other.info is weights.info
    first = after_text(one)
    assert (one.length(0), one.length(1), other.length(0)) == (5, 0, 0)
    name = weights.model.cache_specs[0].name
    assert one.cache.store(name)[0, :, :5].any() and not other.cache.store(name).any()
    assert torch.equal(after_text(other, slot=1).logits, first.logits)
    one.free([0])
    assert other.length(1) == 5 and other.spare == 2 * 16 - 5, "what one frees the other keeps"


def test_a_cache_is_as_large_as_it_was_asked_for() -> None:
    runner = tiny_runner().open(3, 16, 20)
    assert (runner.capacity, runner.max_cache_tokens, runner.spare) == (16, 20, 20)
    assert tiny_runner().open(3, 16).max_cache_tokens == 48
    for slot in range(2):
        runner.admit(slot, TEXT)
    with pytest.raises(OutOfBlocks, match="it holds 16"):
        runner.reserve([0], [17])
    with pytest.raises(OutOfBlocks, match="of 20 are free"):
        runner.reserve([0, 1], [11, 10])
    runner.reserve([0, 1], [10, 10])


def test_a_cache_lies_where_its_model_does() -> None:
    for device in ("cpu", "meta"):
        runner = CpuRunner(tiny_decoder().to(device)).open(1, 8)
        assert runner.info.device.type == runner.cache.store("k0").device.type == device


def test_weights_alone_embed_and_score_and_run_no_pass() -> None:
    runner, ids = tiny_runner(), torch.tensor([3, 5])
    hidden = runner.embed(ids)
    assert torch.equal(hidden, runner.model.embed(ids))
    kinds: list[dict[str, Any]] = [{}, {"ids": ids}, {"norm": False}]
    for options in kinds:
        assert torch.equal(runner.head(hidden, **options), runner.model.head(hidden, **options))
    with pytest.raises(EngineError, match=r"CpuRunner has no cache\nhint: runner\.open\(slots, capacity\)"):
        runner.execute(chain(TEXT))


@pytest.mark.parametrize("name", ["float64", "int8"])
def test_first_layers_are_a_runner_of_a_shallow_model(name: str) -> None:
    model: Any = MODELS[name]()
    whole = CpuRunner(model, replace(model.info, name="tiny", fingerprint="0123"))
    shallow = whole.first_layers(2)
    assert (shallow.info.num_layers, whole.info.num_layers) == (2, CONFIG.num_layers)
    assert not shallow.info.name and not shallow.info.fingerprint, "another model than the one that was named"
    runner, right = shallow.open(1, 16), CpuRunner(model.first_layers(2)).open(1, 16)
    full = after_text(whole.open(1, 16)).logits
    assert torch.equal(after_text(runner).logits, after_text(right).logits)
    assert not torch.equal(after_text(shallow.open(1, 16)).logits, full)


def test_layers_of_a_model_that_runs_all_or_none_are_refused() -> None:
    table = TableModel(3, random_probs(3, 1))
    assert not table.info.layer_ranges
    with pytest.raises(ModelError, match="runs all of its 1 layers or none"):
        CpuRunner(table).first_layers(1)


def test_what_is_known_of_a_loaded_model_stays_with_its_runners() -> None:
    model = tiny_decoder()
    info = replace(model.info, name="tiny", fingerprint="0123")
    runner: Runner = CpuRunner(model, info)
    assert runner.info is info and runner.open(1, 8).info is info
    assert CpuRunner(model).info.name == "" and CpuRunner(model).info.num_layers == CONFIG.num_layers

"""The stock int8 backend: a token has the same bits in every pass, and the results are those of the reference decoder."""

from dataclasses import replace
from functools import cache as remembered
from typing import Any

import pytest
import torch
from torch import Tensor

from batch_invariance import batch_invariance_faults
from draftwood.cache.dense import DenseCache
from draftwood.core.forward import ALL, FINAL, ForwardInput, LayerPlan
from draftwood.errors import ModelError
from draftwood.models.attention import torch_attention
from draftwood.models.backends import int8_stock, int8_weights
from draftwood.models.backends.float_copy import differentiable
from draftwood.models.backends.int8_stock import StockDecoder, StockLinear, split
from draftwood.models.backends.quantised_blocks import Kind, pack, unpack
from draftwood.models.decoder import Decoder
from draftwood.models.loading.tensor_names import expected
from draftwood.testing.parts.tiny import CONFIG
from mixed_blocks import mixed

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, biases": {"qkv_bias": True, "out_bias": True, "mlp_bias": True, "tie_embeddings": False},
    "qwen2": {"family": "qwen2", "qkv_bias": True},
    "qwen3": {"family": "qwen3", "qk_norm": True, "head_dim": 16},
    "mistral, window": {"family": "mistral", "sliding_window": 6},
}
TEXT = [5, 41, 3, 40, 22, 22, 7, 60, 11, 0, 59]


@remembered
def tensors(name: str) -> dict[str, Tensor]:
    config = replace(CONFIG, **FAMILIES[name])
    noise = torch.Generator().manual_seed(3)
    wanted = {n: s for n, s in expected(config).items() if not (config.tie_embeddings and n == "lm_head.weight")}
    drawn = {n: torch.randn(shape, generator=noise) for n, shape in wanted.items()}
    return {n: 1 + 0.1 * t if t.ndim == 1 and "norm" in n else 0.4 * t for n, t in drawn.items()}


def ours(name: str) -> StockDecoder:
    config = replace(CONFIG, **FAMILIES[name])
    return StockDecoder(config, int8_weights.from_tensors(config, tensors(name)))


def reference(name: str) -> Decoder:
    """The float backend over the same packed weights: what is left between the two is arithmetic."""
    same = {n: unpack(pack(t)) if t.ndim == 2 else t for n, t in tensors(name).items()}
    return Decoder.from_tensors(replace(CONFIG, **FAMILIES[name]), same)


def forward(model: Decoder, *, hidden: Tensor | None = None, plan: LayerPlan = ALL) -> Any:
    cache = DenseCache(model.cache_specs, slots=1, capacity=64)
    cache.admit(0, [])
    rows = torch.arange(len(TEXT))
    x = ForwardInput(torch.tensor(TEXT), rows * 0, rows, rows, rows - 1, rows, hidden)
    return model.forward(x, cache, taps=frozenset({FINAL, *range(model.info.num_layers + 1)}), layers=plan)


# --- the same bits


@pytest.mark.slow
def test_row_has_the_same_bits_in_every_pass():
    assert list(batch_invariance_faults(ours("llama"))) == []


@pytest.mark.parametrize("name", list(FAMILIES)[1:])
@pytest.mark.slow
def test_row_of_any_family_has_the_same_bits(name):
    assert list(batch_invariance_faults(ours(name), length=40, sizes=(1, 5, 32), trees=5)) == []


def test_float_backend_has_not():
    assert len(list(batch_invariance_faults(reference("llama"), trees=5))) > 5


@pytest.mark.slow
def test_float_attention_among_exact_products_is_noticed(monkeypatch):
    monkeypatch.setattr(int8_stock, "BACKEND", replace(int8_stock.BACKEND, attention=torch_attention))
    faults = list(batch_invariance_faults(ours("llama"), trees=5))
    assert faults and all("tap 0" not in fault for fault in faults)


def test_rows_of_the_head_are_columns_of_the_whole_head():
    for name in ("llama", "llama, biases"):
        model = ours(name)
        hidden = torch.randn(7, CONFIG.hidden_size, generator=torch.Generator().manual_seed(0))
        ids = torch.tensor([60, 0, 13, 13])
        for norm in (True, False):
            whole = model.head(hidden, norm=norm)
            assert torch.equal(model.head(hidden, ids=ids, norm=norm), whole[:, ids])
            assert torch.equal(model.head(hidden.view(7, 1, -1), ids=ids, norm=norm)[:, 0], whole[:, ids])


# --- the same logits


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_taps_are_those_of_the_reference(name):
    right, said = forward(reference(name)), forward(ours(name))
    assert said.features.keys() == right.features.keys()
    for tap, state in right.features.items():
        assert (said.features[tap] - state).abs().mean() < 2e-3 * state.std(), tap
    assert (said.logits - right.logits).abs().mean() < 2e-3 * right.logits.std()


def test_reference_with_one_layer_disturbed_is_further_away():
    right = forward(ours("llama")).logits
    wrong = forward(reference("llama"), plan=LayerPlan(skip_mlp=frozenset({2}))).logits
    assert (wrong - right).abs().mean() > 2e-2 * right.std()


def test_parts_of_the_layers_say_what_the_whole_says():
    model = ours("llama")
    whole = forward(model)
    below = forward(model, plan=LayerPlan(stop=2))
    assert torch.equal(below.hidden, whole.features[2]) and len(below.logits) == 0
    short = model.first_layers(2)
    info = short.info
    assert info.num_layers == 2 and info.batch_invariant and info.backend == "int8 stock"
    assert torch.equal(forward(short).hidden, whole.features[2])
    assert torch.equal(model.head(whole.hidden), whole.logits)
    assert torch.equal(forward(model, hidden=model.embed(torch.tensor(TEXT))).logits, whole.logits)


def test_backends_say_what_they_are():
    info, plain = ours("llama").info, reference("llama").info
    assert (info.backend, info.batch_invariant, info.dtype) == ("int8 stock", True, torch.float32)
    assert (plain.backend, plain.batch_invariant, plain.dtype) == ("float32", False, torch.float32)


# --- one product


def exact(x: Tensor, weight: Tensor) -> Tensor:
    """The same digits in Python's own whole numbers, rounded once."""
    (xd, xs), (wd, ws) = split(x), split(weight)
    a, b = (d[0].long() * 128 + d[1].long() for d in (xd, wd))
    return ((a @ b.T).double() * ws.T * xs).float()


@pytest.mark.parametrize("columns", [3, 48, 576, 5000])
def test_product_is_the_exact_sum(columns):
    noise = torch.Generator().manual_seed(columns)
    weight = unpack(pack(torch.randn(37, columns, generator=noise)))
    x = torch.randn(9, columns, generator=noise) * torch.logspace(-6, 6, 9)[:, None]
    linear = StockLinear.from_packed(pack(weight))
    assert torch.equal(linear(x), exact(x, weight))
    assert torch.equal(linear(x[4:5]), exact(x, weight)[4:5])
    assert ((linear(x) - x @ weight.T).abs().amax(1) < 1e-3 * (x @ weight.T).abs().amax(1)).all()


def test_greatest_digits_do_not_saturate():
    """Pairs of products must fit into 16 bits on old processors: both factors at their ends, of one sign and of two."""
    x = torch.cat([torch.ones(1, 64), -torch.ones(1, 64), torch.ones(1, 64) * torch.tensor([1, -1]).repeat(32)])
    digits, _ = split(x)
    assert digits.abs().max() == 64
    linear = StockLinear.from_packed(pack(x))
    assert torch.equal(linear(x), exact(x, unpack(pack(x))))


def test_large_matrix_lies_in_parts(monkeypatch):
    weight = torch.randn(100, 32, generator=torch.Generator().manual_seed(1))
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(2))
    whole = StockLinear.from_packed(pack(weight))
    monkeypatch.setattr(int8_stock, "_PART", 40)
    parts = StockLinear.from_packed(pack(weight))
    assert len(parts.digits) == 3
    ids = torch.tensor([99, 0, 48, 47, 96])
    assert torch.equal(parts(x), whole(x))
    assert torch.equal(parts.rows(x, ids), whole(x)[:, ids])
    assert torch.equal(parts.take(ids), whole.take(ids))
    assert (whole.take(ids) - weight[ids]).abs().max() < 0.02


def test_blocks_of_many_types_say_what_their_floats_say():
    model = StockDecoder(*mixed(head=Kind.Q4_K))
    floats = differentiable(model)
    assert floats is not None
    said, right = forward(model).logits, forward(floats).logits
    assert (said - right).abs().mean() < 0.05 * right.std()
    other = forward(StockDecoder(*mixed(embedding=Kind.Q8_0, head=Kind.Q4_K))).logits
    assert (said - other).abs().mean() > 0.1 * right.std()
    assert list(batch_invariance_faults(model, sizes=(1, 5), length=20, trees=1)) == []


def test_row_of_zeros_gives_zeros_and_a_broken_row_breaks_alone():
    linear = StockLinear.from_packed(pack(torch.randn(20, 32, generator=torch.Generator().manual_seed(1))))
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(2))
    x[0], x[2, 7], x[3, 9] = 0, torch.inf, torch.nan
    said = linear(x)
    assert (said[0] == 0).all() and said[2:4].isnan().all()
    assert torch.equal(said[1], linear(x[1:2])[0]) and torch.equal(said[4], linear(x[4:])[0])
    assert linear(x[:0]).shape == (0, 20)


def test_broken_row_reaches_only_those_who_see_it():
    model = ours("llama")
    hidden = model.embed(torch.tensor(TEXT))
    hidden[4] = torch.nan
    said, whole = forward(model, hidden=hidden).logits, forward(model).logits
    assert torch.equal(said[:4], whole[:4])
    assert said[4:].isnan().all()


def test_shape_that_could_overflow_is_refused():
    with pytest.raises(ModelError, match="int32"):
        StockLinear(torch.zeros(1, 2, 1, 200_000, dtype=torch.int8), torch.zeros(1, 1, 1, dtype=torch.float64), 1)
    wide = replace(CONFIG, head_dim=1024)
    with pytest.raises(ModelError, match="1024"):
        StockDecoder(wide, int8_weights.from_tensors(CONFIG, tensors("llama")))

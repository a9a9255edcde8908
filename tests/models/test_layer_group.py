"""Layers whose attentions read the same input: one batched product says what one layer after another says."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.cache.dense import DenseCache
from draftwood.core.config import ModelConfig
from draftwood.core.forward import FINAL, ForwardInput, LayerPlan
from draftwood.models.decoder import Backend, Decoder
from draftwood.models.layer_group import LayerGroup
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder

DEEP = replace(CONFIG, num_layers=6)
CONFIGS: dict[str, ModelConfig] = {
    "llama": DEEP,
    "biases": replace(DEEP, qkv_bias=True, out_bias=True, mlp_bias=True),
    "qwen2": replace(DEEP, family="qwen2", qkv_bias=True),
    "qwen3": replace(DEEP, family="qwen3", qk_norm=True),
    "window": replace(DEEP, sliding_window=5),
}
PLANS = {
    "group": LayerPlan(together=(range(1, 5),)),
    "pairs": LayerPlan(together=(range(0, 2), range(2, 4), range(4, 6))),
    "skipped": LayerPlan(together=(range(0, 6),), skip_attention=frozenset({2, 4}), skip_mlp=frozenset({1, 2})),
    "one left": LayerPlan(together=(range(1, 4),), skip_attention=frozenset({1, 3})),
    "cut": LayerPlan(stop=3, together=(range(1, 5),)),
}
SLOTS, TEXT = 10, [3, 1, 4, 1, 5, 9, 2, 6]


def one_after_another(model: Decoder) -> Decoder:
    """The same weights on a backend that attends one layer at a time."""
    layers: Any = model.layers
    plain = Backend(group_attention=None)
    return Decoder(model.config, model.embedding, layers, model.norm, model.lm_head, plain)  # type: ignore[arg-type]


def part(slot: int, done: int, parents: list[int], entries: list[int] | None = None) -> ForwardInput:
    """Tokens of one slot behind `done` committed ones."""
    depth: list[int] = []
    for parent in parents:
        depth.append(0 if parent < 0 else depth[parent] + 1)
    rows = torch.arange(len(parents))
    at = rows if entries is None else torch.tensor(entries)
    above = torch.tensor([-1 if p < 0 else int(at[p]) for p in parents])
    return ForwardInput((5 * rows + slot) % 61, rows * 0 + slot, done + torch.tensor(depth), at, above, want=rows)


def joined(*parts: ForwardInput) -> ForwardInput:
    names = ("ids", "slots", "positions", "entries", "parents")
    columns = [torch.cat([getattr(each, name) for each in parts]) for name in names]
    return ForwardInput(*columns, want=torch.arange(len(columns[0])))


TREE = [-1, 0, 0, 1, 1, 2, 3]
PASSES: dict[str, ForwardInput] = {
    "token": part(0, len(TEXT), [-1]),
    "tree": part(0, len(TEXT), TREE),
    "entries with holes": part(0, len(TEXT), TREE, [0, 1, 2, 4, 5, 7, 8]),
    "slots": joined(part(1, len(TEXT), [-1, 0, 1]), part(-1, 0, [-1]), part(0, len(TEXT), TREE)),
    "stacked slots": joined(*(part(slot, len(TEXT), TREE[: 1 + slot % 3]) for slot in range(SLOTS))),
}


def said(model: Decoder, x: ForwardInput, plan: LayerPlan) -> dict[str, Tensor]:
    """Residuals, logits, and the entries that the pass leaves."""
    cache = DenseCache(model.cache_specs, slots=SLOTS, capacity=64)
    for slot in range(SLOTS):
        cache.admit(slot, [])
    chains = joined(*(part(slot, 0, list(range(-1, len(TEXT) - 1))) for slot in range(SLOTS)))
    model.forward(replace(chains, ids=torch.tensor(TEXT * SLOTS)), cache)
    cache.commit(list(range(SLOTS)), [list(range(len(TEXT)))] * SLOTS)
    output = model.forward(x, cache, taps=frozenset({FINAL, *range(7)}), layers=plan)
    named = {f"tap {tap}": h for tap, h in output.features.items()} | {"logits": output.logits, "h": output.hidden}
    return named | {s.name: cache.store(s.name) for s in model.cache_specs}


def gap(found: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    assert found.keys() == right.keys()
    return max(float((found[k] - t).abs().max()) for k, t in right.items() if t.numel())


@pytest.mark.one_in(11)
@pytest.mark.parametrize("shown", PASSES)
@pytest.mark.parametrize("name", CONFIGS)
def test_batched_group_says_what_its_layers_say_one_after_another(name: str, shown: str) -> None:
    model = tiny_decoder(1, config=CONFIGS[name])
    for plan in PLANS.values():
        assert gap(said(model, PASSES[shown], plan), said(one_after_another(model), PASSES[shown], plan)) < 1e-12
    ranges = {(each.start, each.stop) for each in model._groups}
    assert ranges == {(1, 5), (0, 2), (2, 4), (4, 6), (1, 3)}, (
        "0 and 1 are left of the skipped ones, and 1, 2 of the cut"
    )


def test_group_reads_its_first_residual_and_not_that_of_each_turn() -> None:
    model = tiny_decoder(1, config=DEEP)
    grouped = said(model, PASSES["tree"], PLANS["group"])
    ordinary = said(model, PASSES["tree"], LayerPlan())
    assert gap(grouped, {name: ordinary[name] for name in grouped}) > 1e-3


FAULTS: dict[str, tuple[str, Callable[[LayerGroup], object]]] = {
    "norm": ("llama", lambda g: g.norm.copy_(g.norm[:1].expand_as(g.norm))),
    "weight": ("llama", lambda g: g.qkv.weight.copy_(g.qkv.weight.flip(0))),
    "output": ("llama", lambda g: g.out.weight.copy_(g.out.weight.flip(0))),
    "bias": ("biases", lambda g: None if g.out.bias is None else g.out.bias.copy_(g.out.bias.flip(0))),
    "head norms": ("qwen3", lambda g: None if g.qk_norm is None else g.qk_norm.copy_(g.qk_norm.flip(0))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_belongs_to_another_layer_of_the_group_would_show(fault: str) -> None:
    name, plant = FAULTS[fault]
    model = tiny_decoder(1, config=CONFIGS[name])
    right = said(model, PASSES["tree"], PLANS["group"])
    with torch.inference_mode():
        for each in model._groups.values():
            plant(each)
    assert gap(said(model, PASSES["tree"], PLANS["group"]), right) > 1e-6


def test_weights_are_stacked_once_and_shallow_models_stack_their_own() -> None:
    model = tiny_decoder(1, config=DEEP)
    said(model, PASSES["token"], PLANS["group"])
    (first,) = model._groups.values()
    said(model, PASSES["tree"], PLANS["group"])
    assert list(model._groups.values()) == [first] and list(first.layers) == [1, 2, 3, 4]
    short = model.first_layers(4)
    plan = LayerPlan(together=(range(1, 3),))
    assert gap(said(short, PASSES["tree"], plan), said(one_after_another(short), PASSES["tree"], plan)) < 1e-12
    assert len(short._groups) == 1 and len(model._groups) == 1

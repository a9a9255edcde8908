"""The native int8 backend equals the reference with the same weights, and a token has the same bits in every pass."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_int32, c_uint8
from dataclasses import replace
from functools import cache as remembered
from typing import Any

import pytest
import torch
from torch import Tensor

from batch_invariance import batch_invariance_faults
from draftwood.cache.dense import DenseCache
from draftwood.core.config import ModelConfig
from draftwood.core.forward import ALL, FINAL, ForwardInput, ForwardOutput, LayerPlan
from draftwood.models.backends import int8_weights
from draftwood.models.backends.float_copy import differentiable
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.models.backends.int8_native_arguments import NativePass
from draftwood.models.backends.quantised_blocks import Kind
from draftwood.models.decoder import Decoder
from draftwood.testing.parts.tiny import CONFIG
from mixed_blocks import mixed
from native_levels import BEST, EVERY_LEVEL, OTHERS, distance, kept_weights, opened, packed


def shape(heads: int, kv: int, width: int, **rest: Any) -> ModelConfig:
    return replace(CONFIG, num_heads=heads, num_kv_heads=kv, head_dim=width, **rest)


CONFIGS = {
    "llama": CONFIG,
    "llama 3x48": shape(6, 2, 48, hidden_size=96, intermediate_size=160, tie_embeddings=False),
    "llama, biases": shape(4, 2, 8, qkv_bias=True, out_bias=True, mlp_bias=True),
    "qwen2 5x64": shape(5, 1, 64, family="qwen2", qkv_bias=True, hidden_size=80),
    "qwen3 1x80": shape(2, 2, 80, family="qwen3", qk_norm=True, hidden_size=64),
    "mistral": shape(4, 2, 8, family="mistral", sliding_window=6),
    "mistral 3x64": shape(3, 1, 64, family="mistral", sliding_window=21, tie_embeddings=False),
}
SOME = ("llama 3x48", "qwen3 1x80", "mistral")
NEAR, FAR = 0.06, 0.1  # mean distance in standard deviations: rounding stays below, a wrong mask or turn is above

TEXT = torch.randint(0, 61, (45,), generator=torch.Generator().manual_seed(5)).tolist()
DONE = 37  # committed before the tree
PARENTS = [-1, 0, 0, 1, 1, 2, 3, 6]
TAPS = frozenset({FINAL, *range(CONFIG.num_layers + 1)})


@remembered
def tensors(name: str, *, four_bits: bool = False) -> dict[str, Tensor]:
    return kept_weights(CONFIGS[name], snapped if four_bits else packed)


def snapped(weight: Tensor) -> Tensor:
    """On a grid of sixteen steps a block, as a file in four bits has them."""
    blocks = weight.view(len(weight), -1, 32)
    low, high = (f(-1, keepdim=True).half().float() for f in (blocks.amin, blocks.amax))
    step = ((high - low) / 15).half().float()
    nibbles = ((blocks - low) / step).round().clamp(0, 15)
    nibbles[..., 0], nibbles[..., 1] = 0, 15
    return (step * nibbles + low).flatten(1)


def ours(name: str, level: str = BEST, **kwargs: Any) -> NativeDecoder:
    config = CONFIGS[name]
    return NativeDecoder(config, int8_weights.from_tensors(config, tensors(name, **kwargs)), opened(level))


def reference(name: str, dtype: torch.dtype = torch.float64, *, four_bits: bool = False, **changes: Any) -> Decoder:
    """The same weights as floats; `changes` to the config make a wrong one."""
    return Decoder.from_tensors(replace(CONFIGS[name], **changes), tensors(name, four_bits=four_bits), dtype)


def chain(ids: Sequence[int], done: int = 0, slot: int = 0) -> ForwardInput:
    rows = torch.arange(len(ids))
    return ForwardInput(
        torch.tensor(ids, dtype=torch.int64), torch.full_like(rows, slot), done + rows, rows, rows - 1, rows
    )


def tree() -> ForwardInput:
    """Nodes behind the first DONE tokens."""
    depths: list[int] = []
    for parent in PARENTS:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    rows = torch.arange(len(PARENTS))
    at = DONE + torch.tensor(depths)
    return ForwardInput(torch.tensor(TEXT[DONE:]), rows * 0, at, rows, torch.tensor(PARENTS), rows)


def begun(model: Any, ids: Sequence[int] = TEXT[:DONE]) -> tuple[DenseCache, ForwardOutput]:
    """A cache that holds the text, and what its pass showed."""
    cache = DenseCache(model.cache_specs, slots=2, capacity=64)
    cache.admit(0, [])
    output = model.forward(chain(ids), cache, taps=TAPS)
    cache.commit([0], [list(range(len(ids)))])
    return cache, output


def both_passes(model: Any, plan: LayerPlan = ALL) -> dict[int | str, Tensor]:
    """A prompt, then a tree behind it: rows at every tap, and the logits."""
    cache, prompt = begun(model)
    output = model.forward(tree(), cache, taps=TAPS, layers=plan)
    rows: dict[int | str, Tensor] = {tap: torch.cat([prompt.features[tap], x]) for tap, x in output.features.items()}
    return rows | {"logits": torch.cat([prompt.logits, output.logits])}


# --- what the reference says


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("name", CONFIGS)
def test_says_what_the_reference_says_at_every_tap(name, level):
    said, right = both_passes(ours(name, level)), both_passes(reference(name))
    assert said.keys() == right.keys() == {*TAPS, "logits"}
    for tap, rows in right.items():
        assert distance(said[tap], rows) < NEAR, tap
        assert float(torch.corrcoef(torch.stack([said[tap].double().flatten(), rows.flatten()]))[0, 1]) > 0.995, tap


def test_four_bits_say_what_the_reference_says():
    model = ours("llama 3x48", four_bits=True)
    kinds = {name: product.parts[0].kind for name, product in model.weights.layers[0].products.items()}
    assert kinds == dict.fromkeys(kinds, Kind.Q4_1)
    right = both_passes(reference("llama 3x48", four_bits=True))
    assert distance(both_passes(model)["logits"], right["logits"]) < NEAR


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("head", [None, Kind.Q4_K, Kind.F16])
def test_blocks_of_many_types_say_what_their_floats_say(head, level):
    model = NativeDecoder(*mixed(head=head), opened(level))
    said, right = (both_passes(each)["logits"] for each in (model, differentiable(model)))
    assert distance(said, right) < NEAR
    other = differentiable(NativeDecoder(*mixed(embedding=Kind.Q8_0, head=head), opened(level)))
    assert distance(said, both_passes(other)["logits"]) > FAR


@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_blocks_of_many_types_give_a_token_the_same_bits_in_every_pass(level):
    model = NativeDecoder(*mixed(head=Kind.Q6_K), opened(level))
    assert list(batch_invariance_faults(model, trees=4)) == []


def test_some_rows_of_a_head_of_any_type_are_columns_of_the_whole():
    model = NativeDecoder(*mixed(head=Kind.Q5_K), opened(BEST))
    hidden, ids = torch.randn(3, 256, generator=torch.Generator().manual_seed(2)), torch.tensor([40, 3, 3, 17])
    assert torch.equal(model.head(hidden, ids=ids), model.head(hidden)[:, ids])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("llama", {"rope_theta": 300.0}),
        ("llama 3x48", {"rope_theta": 300.0}),
        ("qwen2 5x64", {"sliding_window": 30}),
        ("qwen3 1x80", {"rope_theta": 300.0}),
        ("mistral", {"sliding_window": 7}),
        ("mistral", {"sliding_window": None}),
        ("mistral 3x64", {"sliding_window": 20}),
    ],
)
def test_distance_would_show_a_wrong_turn_or_window(name, wrong):
    assert distance(both_passes(ours(name))["logits"], both_passes(reference(name, **wrong))["logits"]) > FAR


@pytest.mark.parametrize("name", CONFIGS)
def test_node_sees_its_own_path_alone(name):
    """Behind nothing, where a single row more or less is a great part of what is output."""
    x = replace(tree(), positions=tree().positions - DONE)
    wrong = replace(x, parents=torch.tensor([-1, 0, 1, 1, 1, 2, 3, 6]))
    said, right, other = (
        model.forward(tokens, begun(model, [])[0]).logits
        for model, tokens in ((ours(name), x), (reference(name), x), (reference(name), wrong))
    )
    assert distance(said, right) < NEAR
    assert distance(said[[2, 5]], other[[2, 5]]) > FAR


PLANS = {
    "stop": LayerPlan(stop=2),
    "attention": LayerPlan(skip_attention=frozenset({1})),
    "mlp": LayerPlan(skip_mlp=frozenset({0, 2})),
    "both": LayerPlan(skip_attention=frozenset({1, 2}), skip_mlp=frozenset({2, 3})),
    "together": LayerPlan(together=(range(1, 3),)),
    "together and skipped": LayerPlan(
        together=(range(0, 3),), skip_attention=frozenset({0, 3}), skip_mlp=frozenset({1, 3})
    ),
    "all together": LayerPlan(together=(range(0, 2), range(2, 4))),
}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", SOME)
def test_plan_leaves_out_exactly_what_it_names(name, plan):
    said, right = (both_passes(model, PLANS[plan]) for model in (ours(name), reference(name)))
    assert said.keys() == right.keys()
    for tap, rows in right.items():
        assert len(said[tap]) == len(rows)
        assert len(rows) == DONE or distance(said[tap][DONE:], rows[DONE:]) < NEAR, tap
    whole = both_passes(reference(name))
    last = "logits" if PLANS[plan].stop is None else FINAL
    assert distance(said[last][DONE:], whole[last][DONE:]) > FAR


# --- layers whose attentions read the same input


GROUPS = {
    "two": LayerPlan(together=(range(1, 3),)),
    "all": LayerPlan(together=(range(0, 4),)),
    "pairs": LayerPlan(together=(range(0, 2), range(2, 4))),
    "one attention": LayerPlan(together=(range(0, 3),), skip_attention=frozenset({0, 2}), skip_mlp=frozenset({1})),
    "no attention": LayerPlan(together=(range(1, 3),), skip_attention=frozenset({1, 2}), skip_mlp=frozenset({2})),
    "no mlp": LayerPlan(together=(range(1, 4),), skip_mlp=frozenset({1, 2, 3})),
    "cut": LayerPlan(start=1, stop=3, together=(range(2, 4),)),
}


def mixed_bits() -> NativeDecoder:
    """Layers in four bits and in eight."""
    config, name = CONFIGS["llama 3x48"], "llama 3x48"
    few, many = (int8_weights.from_tensors(config, tensors(name, four_bits=four)) for four in (True, False))
    layers = tuple(pair[i % 2] for i, pair in enumerate(zip(few.layers, many.layers, strict=True)))
    return NativeDecoder(config, replace(many, layers=layers), opened(BEST))


def grouped_passes(size: int) -> dict[str, ForwardInput]:
    """A chain, a tree, and several slots with padding between them, behind `begun` text."""
    parents = [-1, *((i - 1) // 2 for i in range(1, size))]
    depth: list[int] = []
    for parent in parents:
        depth.append(0 if parent < 0 else depth[parent] + 1)
    rows, ids = torch.arange(size), [(7 * i + 3) % 60 for i in range(size)]
    tree = ForwardInput(torch.tensor(ids), rows * 0, DONE + torch.tensor(depth), rows, torch.tensor(parents), rows)
    parts = [chain([9], slot=-1), tree, chain([4, 5, 6], slot=1), chain([9], slot=-1)]
    columns = (torch.cat([getattr(p, f) for p in parts]) for f in ("ids", "slots", "positions", "entries", "parents"))
    return {"chain": chain(ids, DONE), "tree": tree, "slots": ForwardInput(*columns, want=torch.arange(size + 5))}


def attention_alone(model: NativeDecoder, passed: NativePass, h: Tensor, layer: int) -> Tensor:
    """What the attention of one layer adds to h: it alone in a group of two, without MLPs."""
    first, added, after = min(layer, model.num_layers - 2), torch.empty(1, *h.shape), h.clone()
    skip, ends = (c_uint8 * model.num_layers)(*[3] * model.num_layers), (c_int32 * model.num_layers)()
    skip[layer], ends[first] = 2, first + 2
    model.library.calls.draftwood_layers(
        byref(model._shape), model._layers, first, first + 2, skip, ends, byref(passed.pointers), after.data_ptr(),
        added.data_ptr(), None, 0, None,
    )  # fmt: skip
    assert torch.equal(after, h + added[0])
    return added[0]


def layer_by_layer(
    model: NativeDecoder, cache: DenseCache, x: ForwardInput, plan: LayerPlan, *, wrong: bool = False
) -> dict[int, Tensor]:
    """The residual behind every group, from passes of one layer. `wrong`: attentions read the residual that is there when
    their layer's turn comes."""
    passed = NativePass(x, cache, cache.stage(x), model.rotations, model._stores)
    h = model.embed(x.ids)
    found: dict[int, Tensor] = {}
    for group in plan.groups(model.num_layers):
        first = h
        for i in group:
            if i not in plan.skip_attention:
                h = h + attention_alone(model, passed, h if wrong else first, i)
            rest = LayerPlan(start=i, stop=i + 1, skip_attention=frozenset({i}), skip_mlp=plan.skip_mlp)
            h = model.forward(replace(x, hidden=h), cache, layers=rest).hidden
        found[group.stop] = h
    return found


def agrees(model: NativeDecoder, x: ForwardInput, plan: LayerPlan, *, wrong: bool = False) -> bool:
    """Whether one call gives the bits of passes of one layer: behind every group, and in the cache."""
    (cache, _), (other, _) = begun(model), begun(model)
    for each in (cache, other):
        each.admit(1, [])
    right = layer_by_layer(model, other, x, plan, wrong=wrong)
    given = x if not plan.start else replace(x, hidden=model.embed(x.ids))
    output = model.forward(given, cache, taps=frozenset({*range(5)}), layers=plan)
    assert output.features.keys() - {plan.start} == right.keys(), "no tap stands inside a group"
    entries = all(torch.equal(cache.store(s.name), other.store(s.name)) for s in model.cache_specs)
    last = torch.equal(output.hidden, right[max(right)])
    return entries and last and all(torch.equal(output.features[tap], h) for tap, h in right.items())


@pytest.mark.parametrize("size", [1, 3, 17])
@pytest.mark.parametrize("name", ["llama 3x48", "llama, biases", "qwen3 1x80", "mistral", "four and eight bits"])
@pytest.mark.slow
def test_group_in_one_call_has_the_bits_of_its_layers_one_by_one(name, size):
    model = mixed_bits() if name == "four and eight bits" else ours(name)
    for shown, x in grouped_passes(size).items():
        torch.set_num_threads(2 if shown == "slots" else 1)
        try:
            for plan in GROUPS:
                assert agrees(model, x, GROUPS[plan]), (shown, plan)
        finally:
            torch.set_num_threads(1)


@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_group_in_one_call_has_its_bits_at_every_level(level):
    for name in ("llama 3x48", "qwen3 1x80"):
        for x in (*grouped_passes(3).values(), *grouped_passes(23).values()):
            assert agrees(ours(name, level), x, GROUPS["all"]), name


@pytest.mark.parametrize("plan", ["two", "all", "pairs", "no mlp"])
def test_attentions_that_read_the_residual_of_their_turn_have_other_bits(plan):
    for x in grouped_passes(5).values():
        assert not agrees(ours("llama 3x48"), x, GROUPS[plan], wrong=True)


def test_layer_alone_adds_what_its_attention_adds_in_a_group():
    """So that the comparison above is with ordinary passes."""
    model, x = ours("llama 3x48"), tree()
    cache, _ = begun(model)
    passed, h = NativePass(x, cache, cache.stage(x), model.rotations, model._stores), model.embed(x.ids)
    for i in range(model.num_layers):
        plain = LayerPlan(start=i, stop=i + 1, skip_mlp=frozenset({i}))
        right = model.forward(replace(x, hidden=h), cache, layers=plain).hidden
        assert torch.equal(h + attention_alone(model, passed, h, i), right)


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("name", SOME)
def test_layers_run_in_two_parts_give_the_bits_of_one(name, cut):
    model = ours(name)
    cache, _ = begun(model)
    x = tree()
    below = model.forward(x, cache, layers=LayerPlan(stop=cut))
    handed = below.hidden.clone()
    above = model.forward(replace(x, hidden=handed), cache, taps=TAPS, layers=LayerPlan(start=cut))
    assert len(below.logits) == 0 and torch.equal(handed, below.hidden), "what was handed in is not written to"
    assert above.features.keys() == {t for t in TAPS if t == FINAL or t >= cut}
    for tap, rows in both_passes(model).items():
        if tap == "logits" or tap == FINAL or tap >= cut:  # type: ignore[operator]
            assert torch.equal(above.logits if tap == "logits" else above.features[tap], rows[DONE:])  # type: ignore[index]
    assert torch.equal(above.features[cut], below.hidden)


@pytest.mark.parametrize("count", [1, 3])
def test_first_layers_are_a_model_of_their_own(count):
    short = ours("llama 3x48").first_layers(count)
    assert short.info.num_layers == count and len(short.cache_specs) == 2 * count
    _, said = begun(short)
    _, right = begun(reference("llama 3x48").first_layers(count))
    assert distance(said.logits, right.logits) < NEAR
    assert torch.equal(said.features[count], begun(ours("llama 3x48"))[1].features[count])


# --- the head and the embedding


@pytest.mark.parametrize("four_bits", [False, True])
def test_some_columns_of_the_head_have_the_bits_of_all(four_bits):
    model = ours("llama 3x48", four_bits=four_bits)
    _, output = begun(model)
    assert torch.equal(model.head(output.hidden), output.logits)
    assert torch.equal(model.head(output.features[FINAL], norm=False), output.logits)
    for ids in (torch.tensor([60, 0, 13, 13]), torch.arange(61).flip(0), *(torch.tensor([i]) for i in range(20))):
        for _ in range(2):
            assert torch.equal(model.head(output.hidden, ids=ids), output.logits[:, ids])
    assert model.head(output.hidden.view(1, DONE, -1)).shape == (1, DONE, 61)


def test_embedding_is_what_was_packed():
    for four_bits in (False, True):
        model = ours("llama 3x48", four_bits=four_bits)
        ids = torch.tensor([[3, 60], [0, 17]])
        assert torch.equal(
            model.embed(ids), tensors("llama 3x48", four_bits=four_bits)["model.embed_tokens.weight"][ids]
        )


@pytest.mark.parametrize("wrong", [-1, 61, 2**40])
def test_id_outside_the_vocabulary_is_refused(wrong):
    with pytest.raises(IndexError, match=f"vocabulary of 61: .*{wrong}"):
        ours("llama").embed(torch.tensor([0, wrong]))


@pytest.mark.parametrize("name", SOME)
def test_best_is_the_place_of_the_greatest_logit(name):
    _, output = begun(ours(name))
    assert output.best is not None and torch.equal(output.best, output.logits.argmax(-1))


def test_logits_are_made_only_where_they_are_wanted():
    model = ours("llama")
    cache, _ = begun(model)
    want = torch.tensor([7, 2])
    output = model.forward(replace(tree(), want=want), cache)
    assert torch.equal(output.logits, both_passes(model)["logits"][DONE:][want])
    assert output.logits_index.tolist() == [-1, -1, 1, -1, -1, -1, -1, 0]
    none = model.forward(replace(tree(), want=want[:0]), cache)
    assert none.logits.shape == (0, 61) and torch.equal(none.hidden, output.hidden)


def test_pass_without_tokens_says_nothing():
    model = ours("llama")
    cache, _ = begun(model)
    output = model.forward(chain([], DONE), cache, taps=TAPS)
    assert output.logits.shape == (0, 61) and output.hidden.shape == (0, 32)


def test_padding_reads_as_nothing_wherever_it_stands():
    model, names = ours("llama 3x48"), ("ids", "slots", "positions", "entries", "parents")
    alone = model.forward(chain([9], slot=-1), begun(model)[0])
    cache, _ = begun(model)  # and every buffer is full of its numbers
    parts = [chain([9], slot=-1), tree(), chain([9], slot=-1), chain([9], slot=-1)]
    columns: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    x = ForwardInput(**columns, want=torch.arange(len(PARENTS) + 3))
    output = model.forward(x, cache)
    assert torch.equal(output.logits[1:-2], both_passes(model)["logits"][DONE:])
    for place in (0, -2, -1):
        assert torch.equal(output.hidden[place], alone.hidden[0]) and torch.equal(output.logits[place], alone.logits[0])


# --- what is no number


@pytest.mark.parametrize(
    "place",
    [
        *(f"model.layers.1.self_attn.{p}_proj.weight" for p in "qkvo"),
        *(f"model.layers.2.mlp.{p}_proj.weight" for p in ("gate", "up", "down")),
        "model.layers.0.input_layernorm.weight",
        "model.norm.weight",
    ],
)
@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_weights_that_are_no_numbers_give_no_best_token(place, level):
    weights = {key: t.clone() for key, t in tensors("llama").items()}
    weights[place].view(-1)[5] = torch.nan
    _, output = begun(NativeDecoder(CONFIG, int8_weights.from_tensors(CONFIG, weights), opened(level)))
    assert output.logits.isnan().all() and output.best is not None and output.best.tolist() == [-1] * DONE


def test_token_that_is_no_number_spoils_only_what_sees_it():
    config = CONFIGS["llama 3x48"]
    weights = {key: t.clone() for key, t in tensors("llama 3x48").items()}
    text = [t % 60 for t in TEXT[:DONE]]
    text[20] = 60
    _, right = begun(ours("llama 3x48"), text)
    weights["model.embed_tokens.weight"][60, 3] = torch.nan
    _, output = begun(NativeDecoder(config, int8_weights.from_tensors(config, weights), opened(BEST)), text)
    assert output.best is not None and right.best is not None
    assert torch.equal(output.logits[:20], right.logits[:20]) and torch.equal(output.best[:20], right.best[:20])
    assert output.best[20:].tolist() == [-1] * (DONE - 20)


# --- the same bits


@pytest.mark.slow
def test_row_has_the_same_bits_in_every_pass():
    assert list(batch_invariance_faults(ours("llama"), trees=200)) == []


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "llama"])
def test_row_of_any_shape_has_the_same_bits(name):
    assert list(batch_invariance_faults(ours(name), sizes=(1, 5, 16, 64), trees=8)) == []


def test_row_in_four_bits_has_the_same_bits():
    assert list(batch_invariance_faults(ours("llama 3x48", four_bits=True), sizes=(1, 5, 16, 64), trees=8)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("level", OTHERS)
def test_row_has_the_same_bits_at_every_level(level, name):
    assert list(batch_invariance_faults(ours(name, level), trees=20)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CONFIGS, "four bits"])
@pytest.mark.parametrize("level", OTHERS)
def test_whole_model_has_the_same_bits_at_all_levels(level, name):
    how = ("llama 3x48", True) if name == "four bits" else (name, False)
    said, best = (both_passes(ours(how[0], each, four_bits=how[1])) for each in (level, BEST))
    assert said.keys() == best.keys() == {*TAPS, "logits"}
    assert all(torch.equal(said[tap], rows) for tap, rows in best.items())


@pytest.mark.slow
@pytest.mark.parametrize("level", OTHERS)
def test_blocks_of_many_types_have_the_same_bits_at_all_levels(level):
    said, best = (both_passes(NativeDecoder(*mixed(head=Kind.Q6_K), opened(each))) for each in (level, BEST))
    assert said.keys() == best.keys() and all(torch.equal(said[tap], rows) for tap, rows in best.items())


def test_float_backend_has_not():
    assert len(list(batch_invariance_faults(reference("llama 3x48", torch.float32), trees=10))) > 5


@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(threads):
    alone = both_passes(ours("llama 3x48"))
    torch.set_num_threads(threads)
    try:
        for _ in range(3):
            said = both_passes(ours("llama 3x48"))
            assert all(torch.equal(said[tap], rows) for tap, rows in alone.items())
    finally:
        torch.set_num_threads(1)


@pytest.mark.slow
def test_real_model_is_row_exact():
    from draftwood.models.loading.load import load

    model = load("smollm2", dtype="int8").model
    assert list(batch_invariance_faults(model, sizes=(1, 5, 64), length=66, trees=6)) == []


def test_threads_that_share_a_model_share_its_positions():
    """All at once beyond the table's end: every thread must find every position's own angle."""
    right = ours("llama").rotations.upto(5000)
    for _ in range(5):
        model = ours("llama")
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(model.rotations.upto, [5000, 1500, 3000, 2000] * 4))
        for cos, sin in found:
            assert len(cos) == len(sin)
            assert torch.equal(cos, right[0][: len(cos)]) and torch.equal(sin, right[1][: len(sin)])

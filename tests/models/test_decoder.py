"""The decoder computes what transformers computes, in one pass or many, in a chain or a tree, with all layers or some."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache as remembered
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from draftwood.cache.dense import DenseCache
from draftwood.core.forward import ALL, FINAL, ForwardInput, LayerPlan
from draftwood.models.decoder import Decoder, FloatLinear
from draftwood.models.loading import hf_config

pytestmark = pytest.mark.slow

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "attn_implementation": "sdpa",  # eager rounds its softmax to float32
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, long rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama, linear rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral, window": ("Mistral", {"sliding_window": 6}),
}
SOME = ("llama", "qwen3", "mistral, window")
PROMPT = [5, 81, 3, 40, 22, 22, 7, 60, 11]

#     0 ┬ 1 ┬ 3 ─ 6 ─ 7          the root is row 0; every node's own path is what it may see
#       │   └ 4
#       └ 2 ─ 5
TREE = [17, 30, 31, 9, 50, 9, 17, 88]
PARENTS = [-1, 0, 0, 1, 1, 2, 3, 6]


@remembered
def theirs(name: str, layers: int = SHAPE["num_hidden_layers"]) -> Any:
    """A transformers model with random weights, in float64, its RMS norms too: theirs round to float32 in between."""
    family, changes = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**SHAPE | changes | {"num_hidden_layers": layers})
    net = getattr(transformers, f"{family}ForCausalLM")(config)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in net.double().parameters():
            spread = torch.randn(parameter.shape, generator=noise, dtype=torch.float64)
            parameter.copy_(1 + 0.3 * spread if parameter.ndim == 1 and parameter.mean() > 0.5 else 0.15 * spread)
    for parent in list(net.modules()):
        for child, module in parent.named_children():
            if type(module).__name__.endswith("RMSNorm"):
                norm = nn.RMSNorm(len(module.weight), config.rms_norm_eps, dtype=torch.float64)
                norm.load_state_dict(module.state_dict())
                setattr(parent, child, norm)
    return net.eval().requires_grad_(False)


@remembered
def ours(name: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Decoder:
    """The same weights in our decoder; `changes` to the config make a wrong one."""
    net = theirs(name)
    config = replace(hf_config.parse(net.config.to_dict()), **changes)
    return Decoder.from_tensors(config, net.state_dict(), dtype)


def logits(net: Any, ids: Sequence[int]) -> Tensor:
    return net(torch.tensor([list(ids)]), use_cache=False).logits[0]


def new_cache(model: Decoder, slots: int = 1) -> DenseCache:
    cache = DenseCache(model.cache_specs, slots=slots, capacity=64)
    for slot in range(slots):
        cache.admit(slot, [])
    return cache


def tokens(
    ids: Sequence[int], parents: Sequence[int] | None = None, *, slot: int = 0, done: int = 0, rows: slice = slice(None)
) -> ForwardInput:
    """Staged rows of one slot behind `done` committed ones: a chain, or a tree by parents, or some rows of it."""
    parents = list(range(-1, len(ids) - 1)) if parents is None else list(parents)
    depth: list[int] = []
    for parent in parents:
        depth.append(0 if parent < 0 else depth[parent] + 1)
    row = torch.arange(len(ids))[rows]
    return ForwardInput(
        ids=torch.tensor(ids)[rows],
        slots=torch.full_like(row, slot),
        positions=done + torch.tensor(depth)[rows],
        entries=row,
        parents=torch.tensor(parents)[rows],
        want=torch.arange(len(row)),
    )


def join(*parts: ForwardInput) -> ForwardInput:
    """Several slots in one pass."""
    columns: dict[str, Any] = {
        f: torch.cat([getattr(p, f) for p in parts]) for f in ("ids", "slots", "positions", "entries", "parents")
    }
    return ForwardInput(**columns, want=torch.arange(len(columns["ids"])))


def path(node: int) -> list[int]:
    return [] if node < 0 else [*path(PARENTS[node]), TREE[node]]


def after_prompt(model: Decoder) -> DenseCache:
    """A cache that holds the prompt."""
    cache = new_cache(model)
    model.forward(tokens(PROMPT), cache)
    cache.commit([0], [list(range(len(PROMPT)))])
    return cache


def each_alone(model: Decoder) -> Tensor:
    """What every node of the tree says when its path is all there is."""
    return torch.stack([model.forward(tokens(PROMPT + path(i)), new_cache(model)).logits[-1] for i in range(len(TREE))])


def gap(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().max())


# --- the same logits as transformers


@pytest.mark.parametrize("name", MODELS)
def test_prompt_says_what_transformers_says(name):
    right = logits(theirs(name), PROMPT + TREE)
    assert gap(ours(name).forward(tokens(PROMPT + TREE), new_cache(ours(name))).logits, right) < 1e-9
    small = ours(name, torch.float32)
    assert gap(small.forward(tokens(PROMPT + TREE), new_cache(small)).logits.double(), right) < 1e-5 * right.abs().max()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {"rope_theta": 9_000.0}),
        ("llama, long rope", {"rope_scaling": None}),
        ("llama, linear rope", {"rope_scaling": None}),
        ("mistral, window", {"sliding_window": None}),
        ("mistral, window", {"sliding_window": 7}),
        ("mistral", {"sliding_window": 16}),
        ("qwen2", {"rms_eps": 1e-4}),
    ],
)
def test_config_with_one_wrong_value_says_something_else(name, changes):
    model = ours(name, **changes)
    said = model.forward(tokens(PROMPT + TREE), new_cache(model)).logits
    assert gap(said, logits(theirs(name), PROMPT + TREE)) > 1e-6


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("sizes", [(1,) * 9, (4, 5), (8, 1), (2, 3, 4)])
def test_prompt_in_chunks_says_what_it_says_in_one_pass(name, sizes):
    model, done = ours(name), 0
    cache = new_cache(model)
    said = []
    for size in sizes:
        said.append(model.forward(tokens(PROMPT[done : done + size], done=done), cache).logits)
        cache.commit([0], [list(range(size))])
        done += size
    assert gap(torch.cat(said), model.forward(tokens(PROMPT), new_cache(model)).logits) < 1e-12


# --- trees


@pytest.mark.parametrize("name", MODELS)
def test_every_node_says_what_its_path_says_alone(name):
    model = ours(name)
    seen = model.forward(tokens(TREE, PARENTS, done=len(PROMPT)), after_prompt(model))
    assert gap(seen.logits, each_alone(model)) < 1e-12
    right = torch.stack([logits(theirs(name), PROMPT + path(i))[-1] for i in range(len(TREE))])
    assert gap(seen.logits, right) < 1e-9


@pytest.mark.parametrize("name", SOME)
def test_node_that_sees_a_sibling_is_noticed(name):
    model = ours(name)
    right = tokens(TREE, PARENTS, done=len(PROMPT))
    wrong = replace(right, parents=torch.tensor([-1, 0, 1, 1, 1, 2, 3, 6]))  # 2 follows 1, at its own position
    said = model.forward(wrong, after_prompt(model)).logits
    off = (said - each_alone(model)).abs().amax(1) > 1e-6
    assert off.tolist() == [False, False, True, False, False, True, False, False]


@pytest.mark.parametrize("name", SOME)
def test_node_at_the_wrong_position_is_noticed(name):
    model = ours(name)
    right = tokens(TREE, PARENTS, done=len(PROMPT))
    wrong = replace(right, positions=right.positions + torch.tensor([0, 0, 1, 0, 0, 1, 0, 0]))
    said = model.forward(wrong, after_prompt(model)).logits
    off = (said - each_alone(model)).abs().amax(1) > 1e-6
    assert off.tolist() == [False, False, True, False, False, True, False, False]


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("cuts", [(1, 3, 6, 7), (3,), (1, 2, 3, 4, 5, 6, 7)])
def test_tree_run_level_by_level_says_what_it_says_in_one_pass(name, cuts):
    model = ours(name)
    cache = after_prompt(model)
    said = []
    for start, stop in zip((0, *cuts), (*cuts, len(TREE)), strict=True):
        x = tokens(TREE, PARENTS, done=len(PROMPT), rows=slice(start, stop))
        said.append(model.forward(x, cache).logits)
    assert gap(torch.cat(said), each_alone(model)) < 1e-12


def test_rows_may_be_written_again_and_out_of_order():
    model = ours("llama")
    cache = after_prompt(model)
    whole = tokens(TREE, PARENTS, done=len(PROMPT))
    model.forward(replace(whole, ids=whole.ids.flip(0)), cache)  # a first guess, all of it replaced below
    order = torch.tensor([0, 2, 5, 1, 4, 3, 6, 7])
    columns = {f: getattr(whole, f)[order] for f in ("ids", "slots", "positions", "entries", "parents")}
    said = model.forward(ForwardInput(**columns, want=whole.want), cache).logits
    assert gap(said, each_alone(model)[order]) < 1e-12


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("kept", [[0], [0, 1], [0, 2, 5], [0, 1, 3, 6, 7]])
def test_after_a_commit_the_next_pass_cannot_tell_that_there_was_a_tree(name, kept):
    model = ours(name)
    cache = after_prompt(model)
    model.forward(tokens(TREE, PARENTS, done=len(PROMPT)), cache)
    cache.commit([0], [kept])
    text = PROMPT + [TREE[i] for i in kept]
    said = model.forward(tokens([44, 45], done=len(text)), cache).logits
    assert gap(said, model.forward(tokens([*text, 44, 45]), new_cache(model)).logits[-2:]) < 1e-12


def test_commit_of_another_path_is_noticed():
    model = ours("llama")
    cache = after_prompt(model)
    model.forward(tokens(TREE, PARENTS, done=len(PROMPT)), cache)
    cache.commit([0], [[0, 1, 4]])
    text = [*PROMPT, TREE[0], TREE[1], TREE[3]]
    said = model.forward(tokens([44], done=len(text)), cache).logits
    assert gap(said, model.forward(tokens([*text, 44]), new_cache(model)).logits[-1:]) > 1e-6


# --- many slots


@pytest.mark.parametrize("name", SOME)
def test_slots_in_one_pass_do_not_see_each_other(name):
    model = ours(name)
    cache = new_cache(model, slots=3)
    chain = tokens(PROMPT, slot=2)
    tree = tokens(TREE, PARENTS, slot=0)
    one = tokens([8], slot=1)
    said = model.forward(join(chain, tree, one), cache).logits.split([len(PROMPT), len(TREE), 1])
    for part, alone in zip(said, (chain, tree, one), strict=True):
        x = replace(alone, slots=torch.zeros_like(alone.slots))
        assert gap(part, model.forward(x, new_cache(model)).logits) < 1e-12


def test_padding_is_ignored():
    model = ours("llama")
    pad = tokens([1, 2, 3], slot=-1)
    cache = after_prompt(model)
    x = join(pad, tokens(TREE, PARENTS, done=len(PROMPT)), pad)
    seen = model.forward(x, cache)
    assert gap(seen.logits[3:-3], each_alone(model)) < 1e-12
    cache.commit([0], [[0, 1]])
    assert cache.text(0) == [*PROMPT, TREE[0], TREE[1]]


def test_logits_are_made_only_where_they_are_wanted():
    model = ours("llama")
    x = tokens(PROMPT)
    want = torch.tensor([7, 2])
    seen = model.forward(replace(x, want=want), new_cache(model))
    assert gap(seen.logits, model.forward(x, new_cache(model)).logits[want]) < 1e-12
    assert seen.logits_index.tolist() == [-1, -1, 1, -1, -1, -1, -1, 0, -1]


# --- taps, heads and parts of the layers


@pytest.mark.parametrize("name", SOME)
def test_taps_are_the_hidden_states_of_transformers(name):
    model, net = ours(name), theirs(name)
    last: list[Tensor] = []
    hook = net.model.layers[-1].register_forward_hook(lambda module, args, out: last.append(out))
    states = [h[0] for h in net(torch.tensor([PROMPT]), output_hidden_states=True, use_cache=False).hidden_states]
    hook.remove()
    right = {**dict(enumerate(states[:-1])), model.info.num_layers: last[0][0], FINAL: states[-1]}
    seen = model.forward(tokens(PROMPT), new_cache(model), taps=frozenset(right))
    assert seen.features.keys() == right.keys()
    for tap, state in right.items():
        assert gap(seen.features[tap], state) < 1e-9, tap
    assert gap(seen.hidden, last[0][0]) < 1e-9
    assert gap(seen.features[1], right[2]) > 1e-3  # neighbouring taps are not alike


def test_only_the_taps_asked_for_are_kept():
    model = ours("llama")
    assert model.forward(tokens(PROMPT), new_cache(model), taps=frozenset({2})).features.keys() == {2}


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_layers_run_in_two_parts_say_what_they_say_in_one(name, cut):
    model = ours(name)
    cache = after_prompt(model)
    x = tokens(TREE, PARENTS, done=len(PROMPT))
    below = model.forward(x, cache, layers=LayerPlan(stop=cut))
    above = model.forward(replace(x, hidden=below.hidden), cache, layers=LayerPlan(start=cut))
    assert len(below.logits) == 0
    assert gap(above.logits, each_alone(model)) < 1e-12
    nothing = replace(x, hidden=torch.zeros_like(below.hidden))
    assert gap(model.forward(nothing, cache, layers=LayerPlan(start=cut)).logits, each_alone(model)) > 1e-3


def by_hand(net: Any, ids: Sequence[int], plan: LayerPlan) -> Tensor:
    """transformers' own sub-layers, called one by one as the plan says."""
    h = net.model.embed_tokens(torch.tensor([list(ids)]))
    turned = net.model.rotary_emb(h, torch.arange(len(ids))[None])
    mask = torch.full((1, 1, len(ids), len(ids)), -torch.inf, dtype=h.dtype).triu(1)
    groups = {r.start: r for r in plan.together}
    at = 0
    while at < len(net.model.layers):
        group = groups.get(at, range(at, at + 1))
        mixed = {
            i: layer.self_attn(layer.input_layernorm(h), position_embeddings=turned, attention_mask=mask)[0]
            for i in group
            if i not in plan.skip_attention and (layer := net.model.layers[i])
        }
        for i in group:
            layer = net.model.layers[i]
            h = h + mixed.get(i, 0)
            h = h if i in plan.skip_mlp else h + layer.mlp(layer.post_attention_layernorm(h))
        at = group.stop
    return net.lm_head(net.model.norm(h))[0]


@pytest.mark.parametrize(
    "plan",
    [
        ALL,
        LayerPlan(skip_attention=frozenset({1})),
        LayerPlan(skip_mlp=frozenset({0, 2})),
        LayerPlan(skip_attention=frozenset({1, 2}), skip_mlp=frozenset({2, 3})),
        LayerPlan(together=(range(1, 3),)),
        LayerPlan(together=(range(0, 3),), skip_attention=frozenset({0}), skip_mlp=frozenset({1})),
    ],
    ids=["all", "attention", "mlp", "both", "together", "together and skipped"],
)
@pytest.mark.parametrize("name", ["llama", "llama, biases", "qwen3"])
def test_plan_leaves_out_exactly_what_it_names(name, plan):
    model = ours(name)
    said = model.forward(tokens(PROMPT), new_cache(model), layers=plan).logits
    assert gap(said, by_hand(theirs(name), PROMPT, plan)) < 1e-9
    assert (gap(said, logits(theirs(name), PROMPT)) > 1e-3) == (plan != ALL)


@pytest.mark.parametrize("count", [1, 3])
def test_first_layers_are_a_model_of_their_own(count):
    short = theirs("llama", count)
    short.load_state_dict(theirs("llama").state_dict(), strict=False)
    model = ours("llama").first_layers(count)
    assert model.info.num_layers == count
    assert len(model.cache_specs) == 2 * count
    assert gap(model.forward(tokens(PROMPT), new_cache(model)).logits, logits(short, PROMPT)) < 1e-9
    assert model.embedding is ours("llama").embedding


@pytest.mark.parametrize("name", ["llama", "llama, tied"])
def test_head_gives_single_rows(name):
    model = ours(name)
    seen = model.forward(tokens(PROMPT), new_cache(model), taps=frozenset({FINAL}))
    ids = torch.tensor([96, 0, 13])
    assert gap(model.head(seen.hidden), seen.logits) < 1e-12
    assert gap(model.head(seen.hidden, ids=ids), seen.logits[:, ids]) < 1e-12
    assert gap(model.head(seen.features[FINAL], ids=ids, norm=False), seen.logits[:, ids]) < 1e-12
    assert gap(model.head(seen.hidden, ids=ids, norm=False), seen.logits[:, ids]) > 1e-3


def test_rows_of_a_trimmed_vocabulary_are_gathered_once_and_again_where_the_weights_change() -> None:
    linear = FloatLinear(torch.randn(2048, 8))
    x, ids = torch.randn(3, 8), torch.arange(2047, 0, -1)[:1500]
    with torch.inference_mode():
        first = linear.rows(x, ids)
    assert torch.equal(first, x @ linear.weight[ids].T)
    (held,) = linear._taken.values()
    assert torch.equal(linear.rows(x, ids), first) and next(iter(linear._taken.values())) is held
    y = x.clone().requires_grad_()
    linear.rows(y, ids).sum().backward()  # rows that a pass without gradients gathered
    assert y.grad is not None
    with torch.no_grad():
        linear.weight.mul_(2)
    assert torch.equal(linear.rows(x, ids), 2 * first)
    for _ in range(9):
        linear.rows(x, ids.clone())
    assert len(linear._taken) <= 4
    linear.rows(x, ids[:4].clone())
    assert all(len(each[0]) == 1500 for each in linear._taken.values()), "few rows are not worth it"


def test_handed_in_embeddings_stand_for_ids():
    model = ours("llama")
    x = tokens(PROMPT)
    blind = SimpleNamespace(ids=torch.zeros_like(x.ids), hidden=model.embed(x.ids))
    said = model.forward(replace(x, ids=blind.ids, hidden=blind.hidden), new_cache(model)).logits
    assert gap(said, model.forward(x, new_cache(model)).logits) < 1e-12

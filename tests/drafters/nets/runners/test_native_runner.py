"""A head in the int8 backend says what it says in float, in the same bits whoever runs with it."""

from dataclasses import replace
from functools import cache as remembered
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.controllers.costs.cost import CostModel
from draftwood.controllers.fixed import Fixed
from draftwood.core.config import EngineConfig
from draftwood.core.forward import ForwardInput
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.keys import digits, fold
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.random import invert
from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.files.store import Head, read, to_bytes
from draftwood.drafters.nets.make_drafter import feature_drafter, feature_model
from draftwood.drafters.nets.runners.native_runner import Int8Runner
from draftwood.drafters.nets.runners.runner import FloatRunner
from draftwood.drafters.nothing import Nothing
from draftwood.engine.engine import Engine
from draftwood.errors import DrafterError, WeightsError
from draftwood.models.backends import int8_weights
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.models.backends.int8_stock import StockDecoder
from draftwood.models.backends.quantised_blocks import pack, unpack
from draftwood.models.decoder import Decoder
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from native_levels import BEST, EVERY_LEVEL, distance, kept_weights, opened

LLAMA = replace(CONFIG, num_heads=6, num_kv_heads=2, head_dim=48, hidden_size=96, intermediate_size=160)
CONFIGS = {
    "llama": LLAMA,
    "biases": replace(LLAMA, qkv_bias=True, out_bias=True, mlp_bias=True, tie_embeddings=False),
    "mistral": replace(LLAMA, family="mistral", sliding_window=6),
}
HEADS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "eagle": ("eagle", "llama", {}),
    "eagle, bias": ("eagle", "biases", {"bias": True}),
    "eagle, window": ("eagle", "mistral", {}),
    "eagle, whole vocabulary": ("eagle", "llama", {"rows": None}),
    "eagle3": ("eagle3", "llama", {}),
    "eagle3, biases": ("eagle3", "biases", {}),
    "eagle3, window": ("eagle3", "mistral", {}),
    "eagle3, normed residual": ("eagle3", "llama", {"norm_before_residual": True}),
    "eagle3, normed output": ("eagle3", "llama", {"norm_output": True}),
    "eagle3, normed features": ("eagle3", "llama", {"norm_features": True}),
    "eagle3, normed fusion": ("eagle3", "llama", {"norm_fused": True, "norm_before_residual": True}),
    "griffin": ("griffin", "llama", {}),
    "griffin, biases": ("griffin", "biases", {"bias": True}),
    "griffin, window": ("griffin", "mistral", {}),
    "griffin, whole vocabulary": ("griffin", "llama", {"rows": None}),
    "deep eagle, one layer": ("deep_eagle", "llama", {"depth": 1}),
    "deep eagle": ("deep_eagle", "llama", {"depth": 3}),
    "deep eagle, biases": ("deep_eagle", "biases", {"bias": True}),
    "deep eagle, window": ("deep_eagle", "mistral", {}),
    "exit": ("exit", "llama", {}),
    "exit, biases": ("exit", "biases", {}),
    "exit, whole vocabulary": ("exit", "llama", {"rows": None}),
    "exit layer": ("exit_layer", "llama", {}),
    "exit layer, window": ("exit_layer", "mistral", {}),
}
THEMSELVES = [name for name in HEADS if not name.startswith("exit")]  # tokens read what the net puts out before them
NEAR, FAR = 0.03, 0.1  # mean distance in standard deviations: rounding stays below, a wrong norm or turn is above
DONE = 21  # pairs committed before the tree
PARENTS = [-1, 0, 0, 1, 1, 2, 3, 6]


@remembered
def tensors(config: str) -> dict[str, Tensor]:
    return kept_weights(CONFIGS[config])


def target(config: str = "llama", level: str = BEST) -> NativeDecoder:
    return NativeDecoder(CONFIGS[config], int8_weights.from_tensors(CONFIGS[config], tensors(config)), opened(level))


@remembered
def head(name: str) -> Head:
    """As its file gives it back: blocks of 8 bits."""
    kind, config, flags = HEADS[name]
    found = random_head(kind, CpuRunner(target(config)), **{"rows": 37, **flags})
    small = {k: t * (2 / t.shape[1]) ** 0.5 * 3 if t.ndim == 2 else t for k, t in found.tensors.items()}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "head.safetensors"
        path.write_bytes(to_bytes(replace(found, tensors=small)))
        return read(path)


def ours(name: str, level: str = BEST) -> Int8Runner:
    return Int8Runner(head(name), target(HEADS[name][1], level))


def reference(name: str, **changes: Any) -> FloatRunner:
    """The same weights as floats; `changes` to the head's config make a wrong one."""
    config = HEADS[name][1]
    whole = CpuRunner(Decoder.from_tensors(CONFIGS[config], tensors(config), torch.float64))
    given = head(name)
    return FloatRunner(filled(replace(given, config=replace(given.config, **changes))).double(), whole, given.ids)


def features(runner: Any, count: int = DONE + len(PARENTS)) -> Tensor:
    noise = torch.Generator().manual_seed(3)
    return runner.fuse([torch.randn(count, LLAMA.hidden_size, generator=noise) for _ in runner.taps])


def words(count: int) -> Tensor:
    return torch.randint(0, CONFIG.vocab_size, (count,), generator=torch.Generator().manual_seed(5))


def chain(hidden: Tensor, first: int = 0, done: int = 0, slot: int = 0) -> ForwardInput:
    """The pairs [first, first + len(hidden)) of the text, behind `done` committed ones."""
    rows = torch.arange(len(hidden))
    ids = words(first + len(hidden))[first:]
    return ForwardInput(ids, torch.full_like(rows, slot), done + rows, rows, rows - 1, rows, hidden)


def tree(hidden: Tensor, parents: list[int] = PARENTS) -> ForwardInput:
    """Nodes behind the first DONE pairs."""
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    rows = torch.arange(len(parents))
    at = DONE + torch.tensor(depths)
    return ForwardInput(words(DONE + len(parents))[DONE:], rows * 0, at, rows, torch.tensor(parents), rows, hidden)


def empty(runner: Any) -> Any:
    """The same weights with two slots and no entries."""
    fresh = runner.open(2, 64)
    for slot in range(2):
        fresh.admit(slot, [])
    return fresh


def begun(runner: Any, hidden: Tensor) -> tuple[Any, Tensor, Tensor]:
    """The same weights with the entries of the text, and what its pass gave."""
    fresh, x = empty(runner), chain(hidden[:DONE])
    out, logits = fresh.execute(x)
    fresh.commit([0], [list(range(DONE))], [x.ids.tolist()])
    return fresh, out, logits


def both_passes(runner: Any) -> dict[str, Tensor]:
    """A text, then a tree behind it."""
    hidden = features(runner)
    held, out, logits = begun(runner, hidden)
    more, found = held.execute(tree(hidden[DONE:]))
    return {"fused": hidden, "out": torch.cat([out, more]), "logits": torch.cat([logits, found])}


# --- what the float backend says


@pytest.mark.one_in(11)
@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("name", HEADS)
def test_says_what_the_float_backend_says(name: str, level: str) -> None:
    said, right = both_passes(ours(name, level)), both_passes(reference(name))
    for what, rows in right.items():
        assert said[what].shape == rows.shape
        assert distance(said[what], rows) < NEAR, what
    best = (said["logits"].argmax(-1) == right["logits"].argmax(-1)).double().mean()
    assert best > 0.8


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("eagle3", {"norm_before_residual": True}),
        ("eagle3, normed residual", {"norm_before_residual": False}),
        ("eagle3", {"norm_output": True}),
        ("eagle, window", {"layer": replace(CONFIGS["mistral"], num_layers=1, sliding_window=7)}),
        ("eagle3, window", {"layer": replace(CONFIGS["mistral"], num_layers=1, rope_theta=300.0)}),
    ],
)
def test_distance_would_show_a_wrong_setting(name: str, wrong: dict[str, Any]) -> None:
    said, right = both_passes(ours(name)), both_passes(reference(name, **wrong))
    assert max(distance(said[what], rows) for what, rows in right.items()) > FAR


def test_distance_would_show_outputs_that_are_exchanged_and_a_layer_too_few() -> None:
    given, runner = head("griffin"), ours("griffin")
    said, net = both_passes(runner), filled(given).double()
    net.forward_feature, net.read = net.read, net.forward_feature  # type: ignore[assignment]
    right = both_passes(FloatRunner(net, reference("griffin").target, given.ids))
    assert min(distance(said[what], right[what]) for what in ("out", "logits")) > FAR
    deep = head("deep eagle")
    fewer = {name: t for name, t in deep.tensors.items() if not name.startswith("more.1.")}
    shallow = replace(deep, config=replace(deep.config, depth=2), tensors=fewer)
    right = both_passes(FloatRunner(filled(shallow).double(), reference("deep eagle").target, deep.ids))
    assert distance(both_passes(ours("deep eagle"))["logits"], right["logits"]) > FAR


def test_weights_of_a_file_are_kept_as_they_are() -> None:
    for name, t in head("eagle3, biases").tensors.items():
        assert t.ndim < 2 or torch.equal(unpack(pack(t)), t), name


def test_only_wanted_rows_have_logits() -> None:
    runner = ours("eagle3")
    hidden = features(runner)
    _, out, logits = begun(runner, hidden)
    x = chain(hidden[:DONE])
    for want in (torch.tensor([DONE - 1]), torch.tensor([3, 0])):
        same, some = empty(runner).execute(replace(x, want=want))
        assert torch.equal(same, out) and torch.equal(some, logits[want])


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("name", HEADS)
def test_a_pass_that_wants_nothing_leaves_the_same_entries(name: str, level: str) -> None:
    runner = ours(name, level)
    hidden = features(runner)
    right, _, _ = begun(runner, hidden)
    x, entries_alone = chain(hidden[:DONE]), empty(runner)
    _, none = entries_alone.execute(replace(x, want=x.want[:0]))
    entries_alone.commit([0], [list(range(DONE))], [x.ids.tolist()])
    assert not len(none)
    for row in (spec.name for spec in runner.cache_specs):
        assert torch.equal(*(held.cache.store(row)[0, :, :DONE] for held in (entries_alone, right)))
    more = tree(hidden[DONE:])
    for one, other in zip(entries_alone.execute(more), right.execute(more), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("wrong", [-1, 61, 2**40])
def test_id_outside_the_vocabulary_is_refused(wrong: int) -> None:
    runner = ours("eagle")
    x = chain(features(runner)[:2])
    with pytest.raises(DrafterError, match=f"vocabulary of 61: .*{wrong}"):
        empty(runner).execute(replace(x, ids=torch.tensor([3, wrong])))


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("name", ["eagle", "eagle, whole vocabulary"])
def test_ranks_are_those_of_the_float_backend(name: str, level: str) -> None:
    runner, right = ours(name, level), reference(name)
    width = runner.head.config.rows
    logits = 4 * torch.randn(9, width, generator=torch.Generator().manual_seed(1))
    temperature = [1.0, 0.3, 2.0, 1e-3, 1.0, 0.7, 1.0, 1.0, 5.0]
    for k in (1, 2, 5, 17, width):
        prob, tokens = runner.ranked(logits, temperature, k)
        wanted, same = right.ranked(logits.double(), temperature, k)
        torch.testing.assert_close(prob.double(), wanted, rtol=1e-5, atol=1e-7)
        sure = wanted > 1e-30  # where a distribution has nothing left to say it does not rank
        assert torch.equal(tokens[sure], same[sure])


def test_wide_rows_are_ranked_wherever_the_best_stand() -> None:
    runner = ours("eagle, whole vocabulary")
    runner.ids = None
    for width in (64, 100, 1000, 8192):
        x = torch.randn(5, width + 16, generator=torch.Generator().manual_seed(width))[:, :width]
        x[0, -1], x[1, 0], x[2] = 9.0, 9.0, x[2].sort().values
        prob, tokens = runner.ranked(x, [1.0] * 5, 8)
        best = x.softmax(-1).topk(8)
        assert torch.equal(tokens, best.indices)
        torch.testing.assert_close(prob, best.values)


def test_equal_logits_are_ranked_by_place_and_what_is_no_number_stays_none() -> None:
    runner = ours("eagle, whole vocabulary")
    runner.ids = None
    x = torch.zeros(3, 200)
    x[1, 150] = torch.nan
    prob, tokens = runner.ranked(x, [1.0] * 3, 4)
    assert tokens[0].tolist() == tokens[2].tolist() == [0, 1, 2, 3]
    assert prob[1].isnan().all() and torch.equal(prob[0], prob[2]) and prob[0].tolist() == pytest.approx([0.005] * 4)


# --- the same bits


@pytest.mark.one_in(11)
@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("name", HEADS)
def test_node_has_the_same_bits_alone_and_with_others(name: str, level: str) -> None:
    runner = ours(name, level)
    hidden = features(runner)
    held, _, _ = begun(runner, hidden)
    out, logits = held.execute(tree(hidden[DONE:]))
    for node in range(len(PARENTS)):
        path = [node]
        while PARENTS[path[0]] >= 0:
            path.insert(0, PARENTS[path[0]])
        alone, _, _ = begun(runner, hidden)
        x = chain(hidden[DONE:][path], done=DONE)
        one, own = alone.execute(replace(x, ids=words(DONE + len(PARENTS))[DONE:][path]))
        assert torch.equal(one[-1], out[node]) and torch.equal(own[-1], logits[node])


@pytest.mark.parametrize("name", ["eagle", "eagle3", "eagle3, normed output", "griffin", "deep eagle"])
def test_pair_has_the_same_bits_in_every_chunk_and_beside_another_text(name: str) -> None:
    runner = ours(name)
    hidden = features(runner)
    right, out, logits = begun(runner, hidden)
    for size in (1, 4, 17):
        chunked = empty(runner)
        for at in range(0, DONE, size):
            x = chain(hidden[at : min(at + size, DONE)], first=at, done=at)
            some, found = chunked.execute(x)
            chunked.commit([0], [list(range(len(some)))], [x.ids.tolist()])
            assert torch.equal(some, out[at : at + size]) and torch.equal(found, logits[at : at + size])
        for row in (spec.name for spec in runner.cache_specs):
            assert torch.equal(*(held.cache.store(row)[0, :, :DONE] for held in (chunked, right)))
    one, other = chain(hidden[:DONE]), chain(hidden[3:9], slot=1)
    columns = ("ids", "slots", "positions", "entries", "parents")
    together = (torch.cat([getattr(one, c), getattr(other, c)]) for c in columns)
    both = ForwardInput(*together, want=one.want, hidden=torch.cat([hidden[:DONE], hidden[3:9]]))
    beside, found = empty(runner).execute(both)
    assert torch.equal(beside[:DONE], out) and torch.equal(found, logits)


@pytest.mark.parametrize("name", ["eagle", "eagle3", "griffin", "deep eagle"])
def test_path_kept_from_a_tree_leaves_the_rows_of_a_chain(name: str) -> None:
    runner = ours(name)
    hidden = features(runner)
    held, _, _ = begun(runner, hidden)
    held.execute(tree(hidden[DONE:]))
    path = [0, 1, 3, 6, 7]
    ids = words(DONE + len(PARENTS))[DONE:][path]
    held.commit([0], [path], [ids.tolist()])
    fresh, _, _ = begun(runner, hidden)
    fresh.execute(replace(chain(hidden[DONE:][path], done=DONE), ids=ids))
    for row in (spec.name for spec in runner.cache_specs):
        assert torch.equal(*(x.cache.store(row)[0, :, : DONE + len(path)] for x in (held, fresh)))


# --- in the engine


def engine(drafter: Any, policy: Any, *, depth: int = 3) -> Engine:
    runner = CpuRunner(target()).open(3, CONFIG.max_positions)
    recipe = Recipe(drafter=drafter, policy=policy, verifier=Match(), controller=Fixed(depth=depth, nodes=12))
    recipe.check(runner)
    config = EngineConfig(max_num_seqs=3, max_model_len=CONFIG.max_positions, max_prefill_tokens=16)
    return Engine(runner, recipe, cost_model=CostModel(), config=config)


def request(number: int, text: list[int], tokens: int = 20) -> Request:
    params = SamplingParams(temperature=0.8 * (number % 2), seed=number, max_tokens=tokens)
    return Request(number, text, params, CONFIG.vocab_size)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["eagle", "eagle3", "griffin", "deep eagle"])
def test_the_text_is_the_targets_own(name: str) -> None:
    texts = [words(30).tolist(), [5, 7, 1], words(9).tolist()]
    plain, drafted = ([request(i, list(text)) for i, text in enumerate(texts)] for _ in range(2))
    for requests, drafter, policy in (
        (plain, Nothing(), Chain(draw=Draw.GIVEN)),
        (drafted, feature_drafter(head(name), CpuRunner(target())), Static((3, 2, 1), draw=Draw.GIVEN)),
    ):
        e = engine(drafter, policy)
        for r in requests:
            e.add(r)
        while e.has_work:
            e.step()
    assert not any(r.stats.disabled for r in drafted)
    assert sum(r.stats.draft_tokens for r in drafted) > 0
    assert [r.output for r in drafted] == [r.output for r in plain]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["eagle", "eagle3", "griffin", "deep eagle"])
def test_rows_after_every_round_are_those_of_a_fresh_head(name: str) -> None:
    drafter = feature_drafter(head(name), CpuRunner(target()))
    e = engine(drafter, Static((3, 2, 1), draw=Draw.GIVEN))
    asked = request(1, words(30).tolist())
    e.add(asked)
    rounds = 0
    while e.has_work:
        e.step()
        size = e.drafter_state.runner.length(0) if e.drafter_state.slots else 0
        if not size:
            continue
        fresh = engine(drafter, Chain(draw=Draw.GIVEN), depth=0)
        fresh.add(request(2, asked.known[: size + 2], 4))  # it runs on: entries of one that has ended lie in no slot
        while not fresh.drafter_state.runner.length(0) >= size:
            fresh.step()
        for row in (spec.name for spec in e.drafter_state.runner.cache_specs):
            assert torch.equal(*(x.drafter_state.runner.cache.store(row)[0, :, :size] for x in (e, fresh)))
        rounds += 1
    assert rounds > 3


def test_backend_follows_the_target() -> None:
    assert isinstance(feature_model(head("eagle3"), CpuRunner(target())), Int8Runner)
    stock = StockDecoder(LLAMA, int8_weights.from_tensors(LLAMA, tensors("llama")))
    beside = feature_model(head("eagle3"), CpuRunner(stock))
    assert isinstance(beside, FloatRunner) and beside.dtype is torch.float32
    assert distance(both_passes(beside)["logits"], both_passes(reference("eagle3"))["logits"]) < 1e-3


def test_head_that_is_not_whole_is_refused() -> None:
    whole = head("eagle3")
    less = {name: t for name, t in whole.tensors.items() if name != "layer.down.weight"}
    with pytest.raises(WeightsError, match=r"missing \['layer.down.weight'\]"):
        feature_model(replace(whole, tensors=less), CpuRunner(target()))


# --- over fewer tokens


@pytest.mark.parametrize("name", HEADS)
def test_trimmed_logits_are_columns_of_the_whole_to_the_bit(name: str) -> None:
    runner = ours(name).open(1, 64)
    runner.admit(0, [])
    hidden = features(runner)
    x = chain(hidden[:DONE])
    ids = torch.arange(CONFIG.vocab_size) if runner.ids is None else runner.ids
    only = ids[1::3].contiguous()
    out, whole = runner.execute(x)
    again, some = runner.execute(x, only)
    assert torch.equal(out, again) and torch.equal(some, whole[:, 1::3])
    prob, tokens = runner.ranked(some, [1.0] * len(some), 4, only)
    best = some.softmax(-1).topk(4)
    assert torch.equal(tokens, only[best.indices])
    torch.testing.assert_close(prob, best.values)
    held = runner._only
    runner.execute(x, only)
    assert runner._only is held, "packed once"


# --- a chain in one call


def by_steps(runner: Int8Runner, x: ForwardInput, temperature: float, steps: int, only: Tensor | None) -> Any:
    """The same chain, pass by pass."""
    a, found = runner.execute(replace(x, want=torch.tensor([x.size - 1])), only)
    a, at, tokens, prob = a[-1:], int(x.positions[-1]), [], []
    for j in range(steps):
        share, token = runner.ranked(found, [temperature], 1, only)
        prob.append(float(share[0, 0]))
        tokens.append(int(token[0, 0]))
        row = torch.tensor([x.size + j])
        one = ForwardInput(token[0], row * 0, torch.tensor([at + 1 + j]), row, row - 1, row * 0, a)
        a, found = runner.execute(one, only)
    return [tokens], [prob]


def in_one_call(runner: Int8Runner, x: ForwardInput, temperature: float, steps: int, only: Tensor | None) -> Any:
    found = runner.best_chains(x, [temperature], steps, only)
    assert found is not None
    return tuple(each[..., 0].tolist() for each in found)


@pytest.mark.one_in(11)
@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("name", THEMSELVES)
def test_a_chain_in_one_call_is_that_of_single_passes_to_the_bit(name: str, trimmed: bool) -> None:
    runner = ours(name)
    hidden = features(runner)
    only = None if not trimmed else (torch.arange(61) if runner.ids is None else runner.ids)[::3].clone()
    x = chain(hidden[DONE : DONE + 3], first=DONE, done=DONE)
    for temperature, steps in ((1.0, 5), (0.6, 1)):
        found = in_one_call(begun(runner, hidden)[0], x, temperature, steps, only)
        assert found == by_steps(begun(runner, hidden)[0], x, temperature, steps, only)
        assert all(0 < p <= 1 for p in found[1][0])
    less = chain(hidden[DONE : DONE + 2], first=DONE, done=DONE)
    one, other = (in_one_call(begun(runner, hidden)[0], each, 1.0, 5, only) for each in (x, less))
    assert one != other, "a twin: another text, another chain"


@pytest.mark.parametrize("name", THEMSELVES)
def test_the_next_best_tokens_of_every_step_are_those_that_ranking_its_logits_gives(name: str) -> None:
    runner = ours(name)
    hidden = features(runner)
    x = chain(hidden[DONE : DONE + 3], first=DONE, done=DONE)
    alone, three = (begun(runner, hidden)[0].best_chains(x, [1.0], 4, k=k) for k in (1, 3))
    assert alone is not None and three is not None
    for one, several in zip(alone, three, strict=True):
        assert several.shape == (1, 4, 3) and torch.equal(several[..., :1], one), "the chain is the same"
    fresh = begun(runner, hidden)[0]
    _, logits = fresh.execute(replace(x, want=torch.tensor([x.size - 1])))
    prob, tokens = fresh.ranked(logits, [1.0], 3)
    assert torch.equal(three[0][:, 0], tokens) and torch.equal(three[1][:, 0], prob)


@pytest.mark.parametrize("name", THEMSELVES)
def test_a_chain_ends_behind_the_first_path_that_is_too_improbable(name: str) -> None:
    runner = ours(name)
    hidden = features(runner)
    x = chain(hidden[DONE : DONE + 3], first=DONE, done=DONE)
    whole = begun(runner, hidden)[0].best_chains(x, [1.0], 5)
    assert whole is not None
    tokens, prob = whole
    paths = prob[0, :, 0].cumprod(0).tolist()
    for bound in (1.001 * path for path in paths[:4]):
        ran = 1 + next(i for i, path in enumerate(paths) if path < bound)  # the step below the bound is the last
        found = begun(runner, hidden)[0].best_chains(x, [1.0], 5, None, bound)
        assert found is not None
        assert torch.equal(found[1][:, :ran], prob[:, :ran]) and not found[1][:, ran:].any()
        assert torch.equal(found[0][:, :ran], tokens[:, :ran])


@pytest.mark.parametrize("name", [name for name in HEADS if name not in THEMSELVES])
def test_a_net_that_reads_hidden_states_of_the_target_has_no_chain_in_one_call(name: str) -> None:
    runner = ours(name)
    assert begun(runner, features(runner))[0].best_chains(chain(features(runner)[DONE:]), [1.0], 2) is None


def test_a_chain_without_room_and_several_chains_are_left_to_the_loop() -> None:
    runner = ours("eagle3")
    hidden = features(runner)
    short = runner.open(1, 8)
    short.admit(0, [])
    assert short.best_chains(chain(hidden[:4]), [1.0], 5) is None and short.best_chains(chain(hidden[:4]), [1.0], 4)
    assert short.best_chains(chain(hidden[:4]), [1.0, 1.0], 4) is None
    with pytest.raises(DrafterError, match="vocabulary of 61"):
        x = chain(hidden[:2])
        empty(runner).best_chains(replace(x, ids=torch.tensor([3, 61])), [1.0], 2)


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("name", THEMSELVES)
def test_a_drawn_chain_in_one_call_is_that_of_single_passes_to_the_bit(name: str, trimmed: bool) -> None:
    runner = ours(name)
    hidden, u = features(runner), digits(fold(torch.arange(5), 9))
    only = None if not trimmed else (torch.arange(61) if runner.ids is None else runner.ids)[::3].clone()
    x = chain(hidden[DONE : DONE + 3], first=DONE, done=DONE)
    found = begun(runner, hidden)[0].drawn_chain(x, 0.8, u, only)
    assert found is not None
    tokens, q = found
    fresh, words = begun(runner, hidden)[0], runner.ids if only is None else only
    a, logits = fresh.execute(replace(x, want=torch.tensor([x.size - 1])), only)
    for step, uniforms in enumerate(u):
        share = fresh.shares(logits, [0.8])
        torch.testing.assert_close(share, torch.softmax(logits / 0.8, -1), rtol=1e-5, atol=1e-7)
        assert torch.equal(share[0], q[step])
        column = invert(share, uniforms[None])
        token = column if words is None else words[column]
        assert int(token) == int(tokens[step])
        row = torch.tensor([x.size + step])
        at = x.positions[-1:] + 1 + step
        a, logits = fresh.execute(ForwardInput(token, row * 0, at, row, row - 1, row * 0, a[-1:]), only)
    flat = [begun(runner, hidden)[0].drawn_chain(x, 50.0, digits(fold(torch.arange(5), i)), only) for i in (9, 10)]
    one, other = (each[0].tolist() for each in flat if each is not None)
    assert one != other, "a twin: other uniforms, another chain"


def test_what_is_no_distribution_is_drawn_from_nowhere() -> None:
    runner = ours("eagle3")
    hidden = features(runner)
    u = digits(fold(torch.arange(2), 1))
    with pytest.raises(DrafterError, match="not numbers"):
        empty(runner).drawn_chain(chain(hidden[:2] * torch.nan), 1.0, u)
    short = runner.open(1, 4)
    short.admit(0, [])
    assert short.drawn_chain(chain(hidden[:3]), 1.0, u) is None, "no room"
    assert runner.shares(torch.tensor([[0.0, torch.nan]]), [1.0]).isnan().all()

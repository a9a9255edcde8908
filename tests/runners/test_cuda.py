"""Passes as rectangles compute what the processor's runner computes, and read nothing.

On tensors of the processor, without graphs: what is captured and replayed elsewhere are these very functions.
"""

import random
from dataclasses import replace

import pytest
import torch

from device_passes import VOCAB, Pair, Part, as_pass, drawn, logits_of, near, text
from draftwood.cache.dense import DenseCache
from draftwood.cache.device import DeviceCache
from draftwood.core.config import ModelConfig
from draftwood.core.forward import FINAL, ForwardInput, LayerPlan, Span
from draftwood.errors import EngineError, OutOfBlocks
from draftwood.models.decoder import Decoder
from draftwood.runners import rectangles
from draftwood.runners.cuda import Captured, CudaRunner, similar
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder, tiny_weights

SHAPES: dict[str, ModelConfig] = {
    "llama": CONFIG,
    "window": replace(CONFIG, sliding_window=7),
    "narrow window": replace(CONFIG, sliding_window=2),
    "qwen3": replace(CONFIG, family="qwen3", qk_norm=True),
    "layers that differ": replace(
        CONFIG,
        sliding_window=5,
        full_layers=(1, 3),
        local_rope_theta=100.0,
        post_norms=True,
        activation="gelu_tanh",
        attention_cap=2.0,
        logit_cap=3.0,
        query_scale=0.5,
        embedding_scale=2.0,
        norm_offset=1.0,
    ),
}
LONG = replace(CONFIG, max_positions=4096)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("told", [True, False], ids=["unread", "lists"])
@pytest.mark.parametrize("shape", SHAPES)
def test_random_trees_and_chunks_of_several_slots_are_those_of_the_processor(shape: str, told: bool) -> None:
    rng = random.Random(list(SHAPES).index(shape))
    pair = Pair.of(tiny_decoder(1, config=SHAPES[shape]), 5, 128)
    for slot in range(5):
        pair.admit(slot, [1, 2, 3])
    for turn in range(10):
        slots = sorted(rng.sample(range(5), rng.randrange(1, 6)), key=lambda _: rng.random())
        most = 9 if turn < 3 else 2
        parts = [drawn(rng, slot, rng.randrange(1, most), rng.choice([0, 1, 3, 6, 13])) for slot in slots]
        pair.run(parts, told=told)
        paths = [part.path(rng.randrange(part.known - 1, len(part.ids))) for part in parts]
        pair.commit(parts, paths)


def test_trees_of_one_size_that_fill_the_batch_are_read_where_they_lie() -> None:
    """Slots that follow one another, and trees of a width that needs no padding."""
    rng = random.Random(3)
    pair = Pair.of(tiny_decoder(1), 4, 64)
    for slot in range(4):
        pair.admit(slot, [slot])
    for _ in range(4):
        parts = [drawn(rng, slot, 1, 7) for slot in range(4)]
        pair.run(parts)
        pair.commit(parts, [part.path(rng.randrange(8)) for part in parts])


def test_prompts_ride_beside_trees_and_single_tokens() -> None:
    rng = random.Random(5)
    pair = Pair.of(tiny_decoder(1), 4, 256)
    for slot in range(4):
        pair.admit(slot, [1, 2])
    for sizes in ([150, 1, 20, 1], [1, 70, 4, 1], [1, 1, 64, 65]):
        parts = [drawn(rng, slot, size, 0 if size > 1 else 5) for slot, size in enumerate(sizes)]
        pair.run(parts)
        pair.commit(parts, [part.path(len(part.ids) - 1) for part in parts])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("room", ["as it is", "no room for masks"])
def test_contexts_that_outgrow_the_stores_keep_their_entries(room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if room != "as it is":
        monkeypatch.setattr(rectangles, "MOST_MASKED", 0)  # the other way to attend
    rng = random.Random(7)
    pair = Pair.of(tiny_decoder(1, config=LONG), 3, 1500)
    for slot in range(3):
        pair.admit(slot, [1, 2])
    for known in (300, 206, 1, 1, 1, 300, 300):  # 506 of 511 entries, then trees across the border
        parts = [drawn(rng, 0, known, 6), drawn(rng, 1, 1, 6), drawn(rng, 2, 2, 0)]
        pair.run(parts)
        pair.commit(parts, [part.path(len(part.ids) - 1) for part in parts])
    assert pair.device.length(0) > 1100 and pair.device.cache.room > 1100


def test_levels_that_are_added_one_at_a_time_attend_to_their_own_path() -> None:
    """As drafters run them: parents of earlier passes are kept."""
    rng = random.Random(11)
    pair = Pair.of(tiny_decoder(1, config=SHAPES["window"]), 3, 64)
    for slot in (2, 0):
        pair.admit(slot, [1, 2])
    for told in (True, False, True, False):
        parts = [drawn(rng, slot, 1 + rng.randrange(5), 0) for slot in (2, 0)]
        done = [pair.cpu.length(part.slot) for part in parts]
        pair.run(parts, told=told)
        whole = parts
        for _ in range(3):
            width = rng.randrange(1, 4)
            grown = [grow(rng, part, width) for part in whole]
            pair.agree(added(whole, grown, done, told), frozenset({2}))
            whole = grown
        pair.commit(whole, [part.path(len(part.ids) - 1) for part in whole])


@pytest.mark.one_in(5)
@pytest.mark.parametrize("room", ["as it is", "no room for masks"])
@pytest.mark.parametrize("shape", SHAPES)
def test_groups_of_layers_are_those_of_the_processor(shape: str, room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots that are read in place, slots that are copied, and padding. Nothing is read, and attentions that follow one
    another say something else."""
    if room != "as it is":
        monkeypatch.setattr(rectangles, "MOST_MASKED", 0)
    rng = random.Random(17)
    pair = Pair.of(tiny_decoder(1, config=SHAPES[shape]), 4, 64)
    plans = (LayerPlan(together=(range(1, 3),)), LayerPlan(together=(range(0, 4),), skip_attention=frozenset({1})))
    for slot in range(4):
        pair.admit(slot, [1, 2])
    for slots in ((0, 1, 2, 3), (3, 1), (2,), (0, 1, 3)):
        parts = [drawn(rng, slot, 2, rng.randrange(6)) for slot in slots]
        x = as_pass(parts, [pair.cpu.length(slot) for slot in slots])
        for plan in plans:
            found = pair.agree(x, frozenset({1, 4, FINAL}) if plan is plans[0] else frozenset({0, 4}), layers=plan)
            with as_if_on_a_device(), HostReads() as reads:
                again = pair.device.execute(x, layers=plan)
            assert reads.total == 0 and torch.equal(again.hidden, found.hidden)
            assert (pair.device.execute(x).hidden - found.hidden).abs().max() > 1e-3
        pair.run(parts)
        pair.commit(parts, [part.path(len(part.ids) - 1) for part in parts])


def added(before: list[Part], after: list[Part], done: list[int], told: bool) -> ForwardInput:
    """A pass over what was added."""
    whole = as_pass(after, done)
    new: list[int] = []
    spans: list[Span] = []
    for old, span in zip(before, whole.spans, strict=True):
        first = len(old.ids)
        places = range(span.start + first, span.stop)
        spans.append(Span(span.slot, len(new), len(new) + len(places), span.done, first, span.line))
        new += places
    columns = (whole.ids, whole.slots, whole.positions, whole.entries, whole.parents)
    return ForwardInput(
        *(column[new] for column in columns), want=torch.arange(len(new)), spans=tuple(spans) if told else ()
    )


def grow(rng: random.Random, part: Part, width: int) -> Part:
    """The same with `width` more nodes, anywhere below the known text."""
    last = len(part.ids)
    parents = [rng.randrange(part.known - 1, last) for _ in range(width)]
    return replace(part, ids=part.ids + [rng.randrange(VOCAB) for _ in parents], parents=part.parents + parents)


def test_tokens_of_no_slot_change_nothing() -> None:
    pair = Pair.of(tiny_decoder(1), 2, 16)
    pair.admit(0, [5, 6])
    t = torch.tensor
    x = ForwardInput(t([5, 0, 0]), t([0, -1, -1]), t([0, 0, 0]), t([0, 0, 1]), t([-1, -1, 0]), want=t([0]))
    right, found = (runner.execute(x) for runner in pair.each())
    near(logits_of(found)[:1], logits_of(right)[:1])


# --- the end of a slot


def test_trees_at_the_end_of_a_slot_lose_what_has_no_entry_and_nothing_else() -> None:
    """Dead nodes ride, too: those behind the last entry are computed, and no entry of any slot changes by it."""
    rng = random.Random(13)
    model, known = tiny_decoder(1), 18
    short, wide = CudaRunner(model).open(2, 20), CudaRunner(model).open(2, 64)
    start = [drawn(rng, slot, known, 0) for slot in range(2)]
    for runner in (short, wide):
        for part in start:
            runner.admit(part.slot, [*part.ids, 0])
        runner.execute(as_pass(start, [0, 0]))
        runner.commit([0, 1], [list(range(known))] * 2, [part.ids for part in start])
    before = short.cache.store("k1")[1, :, :known].clone()
    tree = Part(0, [1, 2, 3, 4, 5, 6], [-1, 0, 0, 0, 0, 0], 1)  # entries 18 .. 23 of 20
    found, right = (logits_of(runner.execute(as_pass([tree], [known]))) for runner in (short, wide))
    near(found[:2], right[:2])
    assert torch.equal(short.cache.store("k1")[1, :, :known], before)
    for runner in (short, wide):
        runner.commit([0], [[0, 1]], [[1, 2]])
    near(short.cache.store("v3")[0, :, :20], wide.cache.store("v3")[0, :, :20])
    assert short.length(0) == short.capacity == 20
    with pytest.raises(OutOfBlocks):
        short.reserve([0], [1])
    last = drawn(rng, 1, 1, 1)
    assert logits_of(short.execute(as_pass([last], [known]))).isfinite().all()


# --- what is not a number


def half_broken() -> Decoder:
    """A model whose token 60 is not a number."""
    weights = tiny_weights(1)
    weights["model.embed_tokens.weight"][60] = float("nan")
    return Decoder.from_tensors(replace(CONFIG, sliding_window=6), weights, dtype=torch.float64)


def run_text(runner: CudaRunner, slot: int, first: int, rounds: list[tuple[int, int]]) -> torch.Tensor:
    """Logits of a text whose every round begins with `first`, of (known tokens, nodes) each; its slot is free again then.
    Columns 0 to 59 only: token 60 scores nothing."""
    found: list[torch.Tensor] = []
    rng = random.Random(17)
    runner.admit(slot, [first, 1])
    for known, nodes in rounds:
        part = drawn(rng, slot, known, nodes)
        part = replace(part, ids=[first, *(i % 60 for i in part.ids[1:])])
        output = runner.execute(as_pass([part], [runner.length(slot)]))
        runner.commit([slot], [[*range(known)]], [part.ids[:known]])
        found.append(logits_of(output)[:, :60])
    runner.free([slot])
    return torch.cat(found)


def after_a_broken_text() -> torch.Tensor:
    """Logits of a text in the slot of an earlier one that was not a number."""
    runner = CudaRunner(half_broken()).open(2, 2000)
    assert run_text(runner, 0, 60, [(3, 2), (1, 4), (300, 0), (1, 6)]).isnan().all()
    return run_text(runner, 0, 5, [(3, 0), (290, 0), (8, 0), (1, 0), (1, 0), (1, 4)])


def test_nan_entries_never_reach_a_later_text() -> None:
    assert after_a_broken_text().isfinite().all()


def test_padding_without_room_never_reaches_a_later_text() -> None:
    """It is written behind the last entry of its slot, which becomes one like others when the stores grow."""
    runner = CudaRunner(half_broken()).open(2, 2000)
    assert runner.cache.room == 511
    assert run_text(runner, 1, 60, [(510, 0)]).isnan().all()
    assert run_text(runner, 0, 5, [(600, 0)]).isfinite().all()
    assert runner.cache.room > 511
    assert run_text(runner, 1, 6, [(290, 0), (1, 2), (200, 0), (1, 2)]).isfinite().all()


def test_padding_of_short_lines_without_visible_entries_changes_no_text() -> None:
    """A position left over from a longer text lies outside every window of a shorter one."""
    rng = random.Random(23)
    runner = CudaRunner(half_broken()).open(2, 64)
    for slot in range(2):
        run_text(runner, slot, 5 + slot, [(40, 0)])
        runner.admit(slot, [*runner.cache.text(slot), 1])
    for nodes, done in (((4, 3), 40), ((4, 4), 0)):
        parts = [drawn(rng, slot, 1, nodes[slot]) for slot in range(2)]
        parts = [replace(part, ids=[i % 60 for i in part.ids]) for part in parts]
        assert [runner.length(slot) for slot in range(2)] == [done, done]
        output = logits_of(runner.execute(as_pass(parts, [done, done])))[:, :60]
        runner.free([0, 1])
        for slot in range(2):
            runner.admit(slot, [20 + slot, 1])
    assert output.isfinite().all()


def test_entries_that_are_left_in_place_reach_a_later_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin."""
    monkeypatch.setattr(DeviceCache, "admit", DenseCache.admit)
    assert after_a_broken_text().isnan().any()


def test_padding_beside_a_broken_text_leaves_its_neighbours_alone() -> None:
    """The results of empty lines and of the ends of short ones are never used."""
    runner = CudaRunner(half_broken()).open(3, 64)
    for slot in range(3):
        runner.admit(slot, [slot, 1])
    for turn in range(5):
        parts = [Part(0, [60, 60, 60], [-1, 0, 0], 1), Part(1, [5, 6], [-1, 0], 1), text(2, [7, 8, 9, 10, 11])]
        output = logits_of(runner.execute(as_pass(parts, [runner.length(slot) for slot in range(3)])))
        assert output[3:, :60].isfinite().all(), turn
        runner.commit([0, 1, 2], [[0], [0], [0]], [[60], [5], [7]])


# --- the runner's other verbs


@pytest.mark.parametrize("plan", [LayerPlan(stop=2), LayerPlan(skip_mlp=frozenset({1})), LayerPlan(stop=0)], ids=str)
def test_a_plan_of_layers_is_that_of_the_processor(plan: LayerPlan) -> None:
    pair = Pair.of(tiny_decoder(1), 2, 32)
    pair.admit(1, [1, 2])
    x = as_pass([text(1, [3, 4, 5])], [0])
    right, found = (runner.execute(x, layers=plan) for runner in pair.each())
    near(found.hidden, right.hidden)
    assert len(found.logits) == 0 if plan.stop is not None else torch.isfinite(logits_of(found)).all()


def test_upper_layers_go_on_from_given_states() -> None:
    pair = Pair.of(tiny_decoder(1), 2, 32)
    for slot in range(2):
        pair.admit(slot, [1, 2])
    x = as_pass([text(0, [3, 4, 5]), text(1, [6])], [0, 0])
    below = pair.agree(replace(x, want=x.want[:0]), layers=LayerPlan(stop=2))
    above = pair.agree(replace(x, hidden=below.hidden), frozenset({2, 4, FINAL}), layers=LayerPlan(start=2))
    near(above.features[2], below.hidden)


def test_only_logits_that_are_wanted_are_asked_of_long_passes() -> None:
    runner = CudaRunner(tiny_decoder(1)).open(1, 128)
    runner.admit(0, [1, 2])
    x = as_pass([text(0, [i % 50 for i in range(100)])], [0])
    some = runner.execute(replace(x, want=torch.tensor([99, 4])))
    none = runner.execute(replace(x, want=x.want[:0]))
    whole = runner.execute(x)
    assert some.logits.shape == (2, VOCAB) and none.logits.shape == (0, VOCAB)
    near(some.logits[some.logits_index[[4, 99]]], whole.logits[[4, 99]])


def test_first_layers_are_a_runner_of_their_own() -> None:
    model = tiny_decoder(1)
    pair = Pair.of(model.first_layers(2), 1, 16)
    shallow = CudaRunner(model).first_layers(2).open(1, 16)
    for runner in (*pair.each(), shallow):
        runner.admit(0, [1, 2])
    part = text(0, [1, 2, 3])
    near(logits_of(shallow.execute(as_pass([part], [0]))), logits_of(pair.run([part])))
    assert shallow.info.num_layers == 2


def test_weights_alone_embed_and_score_and_refuse_passes() -> None:
    model = tiny_decoder(1)
    runner, ids = CudaRunner(model), torch.tensor([3, 1])
    hidden = runner.embed(ids)
    assert torch.equal(hidden, model.embed(ids))
    assert torch.equal(runner.head(hidden, ids=ids, norm=False), model.head(hidden, ids=ids, norm=False))
    with pytest.raises(EngineError, match="has no cache"):
        runner.execute(as_pass([text(0, [1])], [0]))


def test_a_pass_reads_nothing_and_neither_does_its_commit() -> None:
    rng = random.Random(19)
    runner = CudaRunner(tiny_decoder(1, config=SHAPES["window"])).open(4, 64)
    for slot in range(3):
        runner.admit(slot, [1, 2])
    for known in (5, 1, 70):
        parts = [drawn(rng, slot, known if slot else 1, 3) for slot in range(3)]
        x = as_pass(parts, [runner.length(slot) for slot in range(3)])
        with HostReads() as reads:
            runner.execute(x, taps=frozenset({1}))
            runner.commit([0, 1, 2], [[0], [0], [0]], [[part.ids[0]] for part in parts])
        assert reads.total == 0, reads.by_name
        runner.cache.check_integrity()
        for slot in range(3):
            runner.free([slot])
            runner.admit(slot, [slot, 9])


def test_functions_without_an_accelerator_are_called_every_time() -> None:
    runner = CudaRunner(tiny_decoder(1)).open(1, 8)
    x = torch.tensor([1, 2])
    assert [runner.captured("twice", lambda y: (2 * y,), each)[0].tolist() for each in (x, x + 1)] == [[2, 4], [4, 6]]
    given = [3]
    again = Captured(given, lambda inputs: inputs[0], None)
    assert again() == 3
    given[0] = 4
    assert again() == 4


def test_spans_of_similar_width_share_a_rectangle() -> None:
    widths = [1, 90, 4, 5, 20, 1]
    spans, at = [], 0
    for slot, width in enumerate(widths):
        spans.append(Span(slot, at, at + width, 0, 0, width))
        at += width
    groups = [[s.stop - s.start for s in group] for group in similar(spans)]
    assert groups == [[90], [5, 20], [1, 4, 1]], "each in the order of the pass"
    assert sorted(s.slot for group in similar(spans) for s in group) == list(range(6))

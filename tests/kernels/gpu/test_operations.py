"""Kernels compute what their twins in plain torch compute: on a GPU, or in Triton's interpreter on a CPU. Each check has a
planted fault that it must find."""

import inspect
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from draftwood.kernels.gpu.arguments import Heads, Placement
from draftwood.kernels.gpu.operations import Operations
from draftwood.kernels.gpu.twins import Twins
from gpu_cases import (
    BLOCKS_OF_A_SLOT,
    DEVICE,
    DTYPE,
    EPS,
    HEADS,
    Case,
    Line,
    agree,
    angles,
    case,
    noise,
    random_line,
)

KERNELS, TWINS = Operations(), Twins()
ROOM = BLOCKS_OF_A_SLOT * HEADS.block
H, UNITS, VOCAB = 64, 48, 75
FIELDS = ("position", "offset", "seen", "words", "slot", "done", "begin", "total", "count")


def fails(check: Callable[..., None], *args: Any) -> None:
    """The check finds a planted fault."""
    with pytest.raises(AssertionError):
        check(*args)


def lines(rng: random.Random) -> list[Line]:
    return [random_line(rng, 2, 40, 1, 6), random_line(rng, 0, 70, 3, 2), random_line(rng, 3, 0, 7, 0)]


def placed(ops: Any, c: Case, words: int = 1, heads: Heads = HEADS) -> Placement:
    return ops.placement(
        c.meta, c.parents, c.positions, c.table, c.trees, room=ROOM, words=words, most_position=255, heads=heads
    )


def test_both_have_the_same_methods() -> None:
    for name, method in inspect.getmembers(Twins, inspect.isfunction):
        if not name.startswith("_"):
            ours, twin = (inspect.signature(getattr(cls, name)) for cls in (Operations, Twins))
            assert [p.name for p in ours.parameters.values()] == [p.name for p in twin.parameters.values()], name
            assert callable(method)


def same_placement(found: Placement, right: Placement) -> None:
    count = right.count.long()[:, None]
    live = (torch.arange(right.width, device=count.device) < count).flatten()
    for name in FIELDS:
        ours, twin = getattr(found, name), getattr(right, name)
        if len(twin) == right.rows and name != "offset":
            ours, twin = ours[live], twin[live]
        assert torch.equal(ours, twin), name


@pytest.mark.parametrize("words", [1, 2])
def test_placement_of_ragged_trees(words: int) -> None:
    rng = random.Random(3)
    c = case(lines(rng), 8, empty=1)
    found, right = placed(KERNELS, c, words), placed(TWINS, c, words)
    same_placement(found, right)
    c.parents[0, 5] = 0 if int(c.parents[0, 5]) else 1
    fails(same_placement, found, placed(TWINS, c, words))


def test_placement_of_a_second_pass_of_a_round_knows_the_paths_of_the_first() -> None:
    whole = Line(1, 20, 1, [0, 1, 1, 2, 4, 3])
    c = case([whole], 8)
    at = placed(TWINS, c)
    for ops in (KERNELS, TWINS):
        trees = torch.zeros_like(c.trees)
        for first, stop in ((0, 3), (3, 5), (5, 7)):
            part = Line(1, 20, 1, whole.whole()[first:stop] if first else whole.parents[:2], first=first)
            d = case([part], 4)
            found = ops.placement(
                d.meta, d.parents, d.positions, c.table, trees, room=ROOM, words=1, most_position=255, heads=HEADS
            )
            assert found.words[: stop - first].tolist() == at.words[first:stop].tolist(), (type(ops), first)
            assert found.offset[: stop - first].tolist() == at.offset[first:stop].tolist()


def test_tokens_without_room_write_nowhere() -> None:
    c = case([Line(0, ROOM - 2, 1, [0, 0, 0])], 4)
    for ops in (KERNELS, TWINS):
        at = placed(ops, c)
        assert (at.offset >= 0).tolist() == [True, True, False, False] and at.total.tolist() == [ROOM]


# --- attention

SHAPES = {
    "grouped": HEADS,
    "alone": Heads(2, 2, 32, 16),
    "one key": Heads(4, 1, 16, 16),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("ops", [KERNELS, Operations(invariant=True)], ids=["fast", "invariant"])
def test_attention_of_ragged_trees(name: str, ops: Operations) -> None:
    heads = SHAPES[name]
    c = case(lines(random.Random(5)), 8, empty=1, heads=heads)
    check_attention(ops, c, heads, 32)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("ops", [KERNELS, Operations(invariant=True)], ids=["fast", "invariant"])
def test_attention_of_single_tokens_in_several_parts(ops: Operations) -> None:
    check_attention(ops, case([Line(0, 91, 1, []), Line(3, 3, 1, []), Line(1, 64, 1, [])], 1), HEADS, 16)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("ops", [KERNELS, Operations(invariant=True)], ids=["fast", "invariant"])
def test_attention_of_a_prompt_beside_a_tree_of_two_words(ops: Operations) -> None:
    rng = random.Random(7)
    wide = [random_line(rng, 0, 5, 66, 0), random_line(rng, 1, 17, 1, 68)]
    heads = SHAPES["one key"]
    check_attention(ops, case(wide, 72, heads=heads), heads, 160, words=2)


def check_attention(ops: Operations, c: Case, heads: Heads, num_rows: int, words: int = 1) -> None:
    at, q = placed(ops, c, words, heads), noise(num_rows, heads.heads * heads.head_dim, seed=9)
    assert at.rows <= num_rows
    found = ops.attended(q, c.keys, c.values, c.table, at, heads, ROOM)
    count = at.count.long()[:, None]
    live = (torch.arange(at.width, device=count.device) < count).flatten()

    def check() -> None:
        right = TWINS.attended(q, c.keys, c.values, c.table, placed(TWINS, c, words, heads), heads, ROOM)
        agree(found[: at.rows][live], right[: at.rows][live])

    check()
    held = c.table.clone()
    c.table[:, 0] = c.table[:, 1]  # a sequence that reads a block of its own twice
    fails(check)
    c.table.copy_(held)
    check()
    c.parents.fill_(-1)  # siblings that see each other's parents no more
    if int(at.words.abs().max()):
        fails(check)


# --- products


def weight(n: int, k: int, seed: int) -> torch.Tensor:
    return noise(n, k, seed=seed, scale=k**-0.5)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("ops", [KERNELS, Operations(invariant=True)], ids=["fast", "invariant"])
def test_products_with_rotation_write_the_cache(bias: bool, norm: bool, ops: Operations) -> None:
    c = case(lines(random.Random(5)), 8, empty=1)
    n = (HEADS.heads + 2 * HEADS.kv_heads) * HEADS.head_dim
    w, b = weight(n, H, 2), noise(n, seed=3) if bias else None
    gains = (noise(16, seed=4), noise(16, seed=5)) if norm else None
    x, stores = noise(32, H, seed=6), (c.keys, c.values)
    at = placed(TWINS, c)

    def of(which: Any, w: torch.Tensor) -> list[torch.Tensor]:
        keys, values = (s.clone() for s in stores)
        q = which.rotated(x, TWINS.squares(x), w, b, gains, EPS, angles(), at, keys, values, HEADS)
        return [q[: at.rows], keys, values]

    found = of(ops, w)
    for ours, right in zip(found, of(TWINS, w), strict=True):
        agree(ours, right)
    assert not torch.equal(found[1], c.keys)
    other = w.clone()
    other[[0, 8]] = w[[8, 0]]  # the halves of a rotation exchanged
    fails(agree, found[0], of(TWINS, other)[0])
    other = w.clone()
    other[-1] = 0
    fails(agree, found[2], of(TWINS, other)[2])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("norm", [False, True])
def test_rotation_of_many_tokens_is_that_of_few(norm: bool) -> None:
    c = case(lines(random.Random(5)), 8, empty=1)
    qkv, b = noise(40, 128, seed=2), noise(128, seed=3)
    gains = (noise(16, seed=4), noise(16, seed=5)) if norm else None
    at = placed(TWINS, c)
    results = []
    for ops in (KERNELS, TWINS):
        keys, values = c.keys.clone(), c.values.clone()
        results.append((ops.turned(qkv, b, gains, EPS, angles(), at, keys, values, HEADS)[: at.rows], keys, values))
    for ours, right in zip(*results, strict=True):
        agree(ours, right)
    fails(agree, results[0][1], c.keys)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("ops", [KERNELS, Operations(invariant=True)], ids=["fast", "invariant"])
def test_products_that_are_added_to_the_residual(rows: int, ops: Operations) -> None:
    x, w, residual = noise(rows, 256, seed=1), weight(H, 256, 2), noise(rows, H, seed=3)
    for _ in range(2):  # the counters of split columns begin anew
        total, squares = ops.added(x, w, residual)
        right, whole = TWINS.added(x, w, residual)
        agree(total, right)
        agree(squares.sum(-1, keepdim=True), whole)
    w[:, -16:] = 0
    fails(agree, total, TWINS.added(x, w, residual)[0])


@pytest.mark.parametrize("ops", [KERNELS, Operations(invariant=True)], ids=["fast", "invariant"])
def test_products_with_a_gate(ops: Operations) -> None:
    x, w = noise(16, H, seed=1), weight(2 * UNITS, H, 2)
    squares = TWINS.squares(x) * torch.tensor([0.25, 0.75], device=DEVICE)  # in parts
    found = ops.gated(x, squares, w, EPS)
    agree(found, TWINS.gated(x, squares, w, EPS))
    fails(agree, found, TWINS.gated(x, squares, torch.cat([w[UNITS:], w[:UNITS]]), EPS))
    fails(agree, found, TWINS.gated(x, squares[:, :1], w, EPS))


@pytest.mark.parametrize("ops", [KERNELS, Operations(invariant=True)], ids=["fast", "invariant"])
def test_logits_come_with_the_place_of_the_greatest(ops: Operations) -> None:
    x, w = noise(16, H, seed=1), weight(VOCAB, H, 2)
    w[70], w[3] = w[40], w[40]  # equal logits: the first of them
    x[4] = float("nan")
    x[5, 0] = float("inf")
    logits, best = ops.scored(x, w)
    right, places = TWINS.scored(x, w)
    numbers = torch.arange(16, device=DEVICE) > 5
    agree(logits[numbers], right[numbers])
    assert best.tolist() == [-1 if not row.isfinite().all() else int(row.argmax()) for row in logits.float().cpu()]
    assert best[4] == -1 == places[4] and not (best == 70).any()
    w[50:] = 9 * w[:25]
    fails(agree, logits[numbers], TWINS.scored(x, w)[0][numbers])


# --- rows


def test_norms_gates_and_entries() -> None:
    x, y, gain = noise(5, H, seed=1), noise(5, H, seed=2), noise(H, seed=3)
    agree(KERNELS.normed(x, gain, EPS), TWINS.normed(x, gain, EPS))
    agree(KERNELS.normed(x, None, EPS), TWINS.normed(x, None, EPS))
    fails(agree, KERNELS.normed(x, gain, EPS), TWINS.normed(x, None, EPS))
    agree(KERNELS.squares(x), TWINS.squares(x))
    fails(agree, KERNELS.squares(x), TWINS.squares(y))
    for ours, right in zip(KERNELS.added_norm(x, y, EPS), TWINS.added_norm(x, y, EPS), strict=True):
        agree(ours, right)
    fails(agree, KERNELS.added_norm(x, y, EPS)[1], TWINS.added_norm(x, x, EPS)[1])
    both = noise(5, 2 * UNITS, seed=4)
    agree(KERNELS.gate(both), TWINS.gate(both))
    fails(agree, KERNELS.gate(both), TWINS.gate(-both))
    ids, table = torch.tensor([3, 0, 11], device=DEVICE), noise(20, H, seed=5)
    for source, given in ((ids, False), (x[:3], True)):
        found, right = (ops.entered(source, table, 16, given) for ops in (KERNELS, TWINS))
        assert torch.equal(found[0], right[0]) and not found[0][3:].any()
        agree(found[1], right[1])
    fails(agree, KERNELS.entered(ids, table, 16, False)[0], TWINS.entered(ids + 1, table, 16, False)[0])


def test_entries_move_along_accepted_paths_of_several_sequences() -> None:
    store = noise(3, 7, 2, 16, 16, seed=1)
    source, to = (torch.tensor(x, device=DEVICE) for x in ([35, 37, 40, 90, 100], [34, 35, 36, 85, 86]))
    starts = torch.tensor([0, 3, 5], device=DEVICE)
    results = [store.clone(), store.clone()]
    for ops, own in zip((KERNELS, TWINS), results, strict=True):
        ops.moved(own, source, to, starts, 3)
    assert torch.equal(*results)
    for s, t in zip(source.tolist(), to.tolist(), strict=True):
        assert torch.equal(results[0][:, t // 16, :, t % 16], store[:, s // 16, :, s % 16])
    one_by_one = store.clone()  # the fault: the first move overwrites what the second reads
    for s, t in ((35, 37), (37, 40)):
        one_by_one[:, t // 16, :, t % 16] = one_by_one[:, s // 16, :, s % 16]
    source, to, starts = (torch.tensor(x, device=DEVICE) for x in ([35, 37], [37, 40], [0, 2]))
    KERNELS.moved(store, source, to, starts, 2)
    assert not torch.equal(store, one_by_one)


def test_numbers_are_not_lost_in_types() -> None:
    assert KERNELS.scored(noise(16, H), weight(VOCAB, H, 2))[0].dtype == DTYPE

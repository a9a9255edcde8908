"""Sizes hold what they must, every token finds its place, and each looks at its own path and at nothing else."""

import random

import pytest
import torch

from device_passes import Part, as_pass, drawn
from draftwood.cache.device import DeviceCache
from draftwood.core.forward import CacheSpec, ForwardInput, HostInput, Span
from draftwood.errors import EngineError
from draftwood.runners import rectangles
from draftwood.runners.rectangles import WIDEST, Attention, Buffers, Size, TreeTable, flat_places, placed, spans_of

CAPACITY = 40


def lined(widths: list[int], done: int = 0) -> list[Span]:
    """Chains of these widths, one behind the other."""
    starts = [sum(widths[:i]) for i in range(len(widths))]
    return [Span(i, at, at + width, done, 0, width) for i, (at, width) in enumerate(zip(starts, widths, strict=True))]


def test_sizes_are_few_and_hold_every_pass() -> None:
    rng = random.Random(1)
    sizes = set[Size]()
    for _ in range(2000):
        spans = lined([rng.randrange(1, 9) for _ in range(rng.randrange(1, 17))], done=rng.randrange(1500))
        size = Size.of(spans, room=2000)
        widest, longest = max(s.stop - s.start for s in spans), max(s.done + s.stop - s.start for s in spans)
        assert size.lines >= len(spans) and size.width >= widest and longest <= size.context <= 2000
        sizes.add(size)
    assert len(sizes) < 5 * 4 * 8 * 2, "of lines, widths, contexts; and in place or not"


def test_a_size_is_rounded_as_it_says() -> None:
    one = Size.of([Span(3, 0, 5, 700, 0, 1)], room=4000)
    assert one == Size(lines=1, width=8, context=768, nodes=4, slot=3)
    assert Size.of([Span(3, 0, 5, 700, 0, 1)], room=710).context == 710, "never more than there is"
    assert Size.of([Span(3, 0, 5, 700, 0, 1)], room=4000, more=100).context == 1024
    assert Size.of([Span(0, 0, 200, 0, 0, 200)], room=4000).width == 256, f"beyond {WIDEST} in steps of it"
    assert Size.of(lined([1, 1, 1, 1]), room=100).slot == 0, "four slots that follow one another"
    assert Size.of(lined([1, 1, 1]), room=100).slot == -1, "a line of padding has its entries elsewhere"
    assert Size.of(lined([1, 1])[::-1], room=100).slot == -1


def test_a_tree_that_no_table_holds_is_refused() -> None:
    assert Size.of([Span(0, 0, 1025, 0, 0, 1)], room=4000).nodes == 1024
    with pytest.raises(EngineError, match="1025 staged nodes"):
        Size.of([Span(0, 0, 5, 0, 1021, 1)], room=4000)


@pytest.mark.parametrize(
    ("parents", "line"),
    [
        ([-1], 1),
        ([-1, 0, 1, 2], 4),
        ([-1, 0, 0], 1),
        ([-1, 0, 1, 1, 2], 2),
        ([-1, 0, 1, 2, 0], 1),
        ([-1, 0, 1, 2, 3, 2], 3),
    ],
)
def test_known_text_ends_at_the_first_branch(parents: list[int], line: int) -> None:
    size = len(parents)
    host = HostInput([0] * size, [4] * size, list(range(size)), parents)
    assert spans_of(host, lambda slot: 10 * slot, {}) == [Span(4, 0, size, 40, 0, line)]


def test_spans_are_those_of_the_slots() -> None:
    host = HostInput([0] * 6, [2, 2, -1, 0, 0, 0], [0, 1, 0, 5, 6, 7], [-1, 0, -1, 4, 4, 5])
    assert spans_of(host, lambda slot: slot, {0: 3}) == [Span(2, 0, 2, 2, 0, 2), Span(0, 3, 6, 0, 5, 3)]


def test_tokens_find_their_places_and_back() -> None:
    spans = lined([3, 1, 4])
    size = Size.of(spans, room=64)
    x = as_pass([drawn(random.Random(1), i, width, 0) for i, width in enumerate([3, 1, 4])], [0, 0, 0])
    index = placed(spans, size, x)
    assert index is not None
    assert index.tolist() == [[0, 1, 2, 2], [3, 3, 3, 3], [4, 5, 6, 7]], "padding repeats a line's last"
    assert index.flatten()[flat_places(spans, size, 8)].tolist() == list(range(8))
    equal = lined([2, 2])
    assert (
        placed(equal, Size.of(equal, 64), as_pass([drawn(random.Random(1), i, 2, 0) for i in range(2)], [0, 0])) is None
    )


# --- attention: queries of zeros look at all they may alike, and values that name their entry tell which those are


def cache(slots: int) -> DeviceCache:
    specs = tuple(CacheSpec(f"{kind}0", 1, CAPACITY, torch.float64) for kind in "kv")
    made = DeviceCache(specs, slots=slots, capacity=CAPACITY)
    named = torch.eye(CAPACITY, dtype=torch.float64)
    made.store("v0")[:, 0, :CAPACITY] = named
    return made


def seen(made: DeviceCache, table: TreeTable, x: ForwardInput, window: int | None) -> list[list[set[int]]]:
    """Of every token of every span the entries of its slot that it looks at."""
    spans = x.spans
    size = Size.of(spans, made.room)
    buffers = Buffers.empty(size, made, None)
    buffers.fill(x, spans, placed(spans, size, x), made.padding)
    attention = Attention(buffers, made, table, torch.float64, window)
    tokens = size.lines * size.width
    zero = torch.zeros(tokens, 1, CAPACITY, dtype=torch.float64)
    named = torch.eye(CAPACITY + 1, dtype=torch.float64)[:, :CAPACITY]
    entries = [done + first + w for _, done, first, _, _ in buffers.meta.T.tolist() for w in range(size.width)]
    value = named[torch.tensor(entries).clamp_max(CAPACITY)][:, None]
    out = attention(0, zero, zero, value).view(size.lines, size.width, CAPACITY)
    return [[set(row.nonzero()[:, 0].tolist()) for row in out[i, : s.stop - s.start]] for i, s in enumerate(spans)]


def right(part: Part, done: int, window: int | None) -> list[set[int]]:
    """The definition: the committed text and the own path, as far as the window reaches back."""
    found: list[set[int]] = []
    for node, depth in enumerate(part.depths):
        position = done + depth
        places = {i: i for i in range(done)} | {done + e: done + part.depths[e] for e in part.path(node)}
        found.append({entry for entry, at in places.items() if window is None or at > position - window})
    return found


@pytest.mark.parametrize("masked", [rectangles.MOST_MASKED, 0], ids=["two products", "fused"])
@pytest.mark.parametrize("window", [None, 5, 1])
def test_every_token_attends_to_its_own_path_only(
    window: int | None, masked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rectangles, "MOST_MASKED", masked)
    rng = random.Random(29)
    made = cache(3)
    table = TreeTable(made)
    for _ in range(12):
        parts = [drawn(rng, slot, rng.randrange(1, 5), rng.randrange(0, 9)) for slot in rng.sample(range(3), 2)]
        done = [rng.randrange(0, 20) for _ in parts]
        found = seen(made, table, as_pass(parts, done), window)
        assert found == [right(part, before, window) for part, before in zip(parts, done, strict=True)]


def test_padding_writes_to_entries_that_no_text_reads() -> None:
    made = cache(2)
    before = made.store("v0")[:, :, :CAPACITY].clone()
    seen(made, TreeTable(made), as_pass([drawn(random.Random(1), 1, 1, 4)], [3]), None)
    assert torch.equal(made.store("v0")[:, :, :CAPACITY], before), "five tokens of eight, each its entry's own value"
    keys = made.store("k0")
    keys[:] = 7.0
    seen(made, TreeTable(made), as_pass([drawn(random.Random(1), 1, 1, 4)], [3]), None)
    changed = (keys[:, 0, :CAPACITY] != 7.0).any(-1)
    assert changed.nonzero().tolist() == [[1, entry] for entry in range(3, 8)]


def test_a_mask_without_the_tree_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: all nodes of a tree see one another."""

    def loose(self: Attention, buffers: Buffers, table: TreeTable, node: torch.Tensor, behind: torch.Tensor, _: object):
        return (behind >= 0)[:, None] & (behind[:, None] <= node[..., None])

    monkeypatch.setattr(Attention, "_tree", loose)
    made = cache(1)
    part = Part(0, [1, 2, 3, 4], [-1, 0, 0, 1], 1)
    assert seen(made, TreeTable(made), as_pass([part], [5]), None)[0] != right(part, 5, None)

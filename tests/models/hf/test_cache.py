"""A pass of ours as rectangles for transformers: nothing is lost in the padding and nothing leaks out of it."""

import pytest
import torch

from draftwood.cache.dense import DenseCache
from draftwood.core.forward import CacheSpec, ForwardInput
from draftwood.models.hf.cache import Pack, packs, transformers_cache, tree_mask

SPECS = (CacheSpec("k0", 2, 4), CacheSpec("v0", 2, 6))


def chains(**sizes: int) -> ForwardInput:
    """A chain of some tokens for each slot: s3=2 is two tokens of slot 3."""
    rows = torch.cat([torch.arange(size) for size in sizes.values()])
    slots = torch.cat([torch.full((size,), int(name[1:])) for name, size in sizes.items()])
    return ForwardInput(torch.arange(len(rows)), slots, rows, rows, rows - 1, want=torch.arange(len(rows)))


def new_cache(committed: dict[int, int] | None = None) -> DenseCache:
    cache = DenseCache(SPECS, slots=8, capacity=80)
    for slot in range(8):
        cache.admit(slot, [])
    for slot, size in (committed or {}).items():
        cache.stage(chains(**{f"s{slot}": size}))
        cache.commit([slot], [list(range(size))])
    return cache


def test_rectangle_and_pass_hold_the_same_tokens():
    x = chains(s3=3, s5=2)
    (pack,) = packs(new_cache().stage(x), x)
    assert pack.spread(x.ids).tolist() == [[0, 1, 2], [3, 4, 0]]
    assert pack.spread(x.ids, fill=-1).tolist() == [[0, 1, 2], [3, 4, -1]]
    back = torch.full_like(x.ids, -9)
    pack.collect(pack.spread(x.ids), back)
    assert back.tolist() == x.ids.tolist()


@pytest.mark.parametrize(
    ("sizes", "widths"),
    [
        ({"s0": 1, "s1": 1, "s2": 1}, [1]),
        ({"s0": 1, "s1": 64, "s2": 1}, [64, 1]),
        ({"s0": 9, "s1": 16, "s2": 8, "s3": 5, "s4": 4}, [16, 8, 4]),
    ],
)
def test_padding_stays_below_half(sizes, widths):
    x = chains(**sizes)
    groups = packs(new_cache().stage(x), x)
    assert [p.width for p in groups] == widths
    assert sorted(s.slot for p in groups for s in p.segments) == list(range(len(sizes)))
    for p in groups:
        assert 2 * sum(p.sizes) > p.width * len(p.segments)


def test_mask_closes_what_the_segments_close():
    cache = new_cache({3: 2})
    tree = chains(s3=3)
    tree = ForwardInput(
        tree.ids, tree.slots, torch.tensor([2, 3, 3]), tree.entries, torch.tensor([-1, 0, 0]), tree.want
    )
    pack = Pack(tuple(cache.stage(tree)), tree)
    seen = (pack.mask(torch.float32, None) == 0)[0, 0].int().tolist()
    assert seen == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 0, 1]]
    narrow = (pack.mask(torch.float32, 2) == 0)[0, 0].int().tolist()
    assert narrow == [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 0, 1]]


def test_no_token_is_left_with_nothing_to_see():
    x = chains(s3=3, s5=2)
    (pack,) = packs(new_cache({3: 4}).stage(x), x)
    mask = pack.mask(torch.float16, None)
    assert mask.isfinite().all()
    assert (mask == 0).any(-1).all()
    assert (mask[1, 0, :2, 2:] < 0).all()  # the shorter slot's tokens see none of the longer one's columns


def test_layers_of_two_kinds_get_two_masks():
    x = chains(s0=5)
    pack = Pack(tuple(new_cache().stage(x)), x)
    assert isinstance(tree_mask(pack, torch.float32, {"": None}), torch.Tensor)
    both = tree_mask(pack, torch.float32, {"full_attention": None, "sliding_attention": 2})
    assert isinstance(both, dict)
    assert [int((m == 0).sum()) for m in both.values()] == [15, 9]


def test_new_rows_land_in_our_stores_and_come_back_behind_the_committed_ones():
    cache = new_cache({3: 4})
    x = chains(s3=3, s5=2)
    (pack,) = packs(cache.stage(x), x)
    k, v = torch.randn(2, 2, 3, 4), torch.randn(2, 2, 3, 6)
    keys, values = transformers_cache(pack, cache, 1).update(k, v, 0)
    assert keys.shape == (2, 2, 7, 4)
    assert values.shape == (2, 2, 7, 6)
    assert torch.equal(keys[0, :, 4:7], k[0])
    assert torch.equal(keys[1, :, :2], k[1, :, :2])
    assert torch.equal(cache.store("v0")[5, :, :2], v[1, :, :2])
    assert (cache.store("k0")[5, :, 2:] == 0).all()  # the padding is written nowhere


def test_old_rows_of_a_slot_never_reach_a_shorter_text():
    cache = new_cache({3: 4})
    cache.store("k0")[5, :, 2:] = torch.nan  # left over from a text whose numbers overflowed
    x = chains(s3=3, s5=2)
    (pack,) = packs(cache.stage(x), x)
    keys, _ = transformers_cache(pack, cache, 1).update(torch.ones(2, 2, 3, 4), torch.ones(2, 2, 3, 6), 0)
    assert keys.isfinite().all()
    assert cache.store("k0")[[3, 5], :, :7].isnan().any()  # a plain gather would have brought them along

"""Fixed-point attention: close to the floats, and blind to whatever a row may not see."""

import pytest
import torch
from torch import Tensor

from draftwood.cache.dense import DenseCache
from draftwood.core.forward import CacheSpec, ForwardInput
from draftwood.models.attention import torch_attention, visible_masks
from draftwood.models.backends.fixed_point import exp_gate, fixed_point_attention

HEADS, KV, WIDTH = 6, 2, 16
PARENTS = [-1, 0, 0, 1, 1, 2, 3]


def attend(attention, q: Tensor, k: Tensor, v: Tensor, window: int | None = None, order=None) -> Tensor:
    """A tree behind nothing; `order` permutes the rows of the pass."""
    cache = DenseCache((CacheSpec("k", KV, WIDTH), CacheSpec("v", KV, WIDTH)), slots=1, capacity=32)
    cache.admit(0, [])
    rows = torch.arange(len(PARENTS)) if order is None else torch.tensor(order)
    depths: list[int] = []
    for parent in PARENTS:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    x = ForwardInput(rows * 0, rows * 0, torch.tensor(depths)[rows], rows, torch.tensor(PARENTS)[rows], rows)
    segments = cache.stage(x)
    masks = visible_masks(segments, x, torch.float32, window)
    return attention(q[rows], k[rows], v[rows], cache.store("k"), cache.store("v"), x, segments, masks)


def drawn(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    noise = torch.Generator().manual_seed(seed)
    q, k, v = (2 * torch.randn(len(PARENTS), heads, WIDTH, generator=noise) for heads in (HEADS, KV, KV))
    return q, k, v


@pytest.mark.parametrize("window", [None, 2])
def test_says_what_the_floats_say(window):
    said, right = (attend(a, *drawn(), window) for a in (fixed_point_attention, torch_attention))
    assert (said - right).abs().max() < 2e-3
    assert (said - attend(torch_attention, *drawn(), 3)).abs().max() > 2e-2


def test_order_of_the_rows_changes_nothing():
    order = [0, 2, 5, 1, 4, 3, 6]
    whole = attend(fixed_point_attention, *drawn())
    assert torch.equal(attend(fixed_point_attention, *drawn(), order=order), whole[order])


def test_row_that_is_not_a_number_is_seen_by_its_children_only():
    q, k, v = drawn()
    whole = attend(fixed_point_attention, q, k, v)
    q[2], k[2], v[2] = torch.nan, torch.nan, torch.nan  # 5 follows 2
    said = attend(fixed_point_attention, q, k, v)
    assert said.isnan().all(1).tolist() == [False, False, True, False, False, True, False]
    rest = [0, 1, 3, 4, 6]
    assert torch.equal(said[rest], whole[rest])


def test_numbers_beyond_the_grid_are_held_at_its_end():
    q, k, v = drawn()
    assert attend(fixed_point_attention, q * 1e6, k * 1e6, v * 1e6).abs().max() <= 256


def test_gate_is_silu_wherever_a_number_stands():
    noise = torch.Generator().manual_seed(0)
    gate, up = 4 * torch.randn(50, 37, generator=noise), torch.randn(50, 37, generator=noise)
    whole = exp_gate(gate, up)
    assert (whole - torch.nn.functional.silu(gate) * up).abs().max() < 1e-5
    for start in range(50):
        for stop in (start + 1, 50):
            assert torch.equal(exp_gate(gate[start:stop], up[start:stop]), whole[start:stop])
    far = torch.tensor([[-1000.0, 1000.0, torch.nan]])
    ends = exp_gate(far, torch.ones(1, 3))[0]
    assert ends[0] == 0 and ends[1] == 1000 and ends[2].isnan()

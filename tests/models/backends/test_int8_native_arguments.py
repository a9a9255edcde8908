"""Products of every block type: near the exact ones, and with the same bits in every company, at every level."""

from ctypes import byref
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

import gguf_blocks
import kernel_arithmetic as twin
from draftwood.kernels.cpu.library import Library
from draftwood.models.backends.int8_native_arguments import product_matrix
from draftwood.models.backends.int8_weights import Product
from draftwood.models.backends.quantised_blocks import Kind, Packed, unpack
from draftwood.models.backends.quantised_blocks.kinds import FLOATS
from native_levels import BEST, EVERY_LEVEL, OTHERS, opened

ROWS, COLUMNS = 53, 768  # two pairs of groups, the last one not full
COUNTS = (1, 2, 5, 16, 64)
INTEGERS = [kind for kind in Kind if kind not in FLOATS]


@cache
def weights(kind: Kind) -> Packed:
    return gguf_blocks.packed(kind, ROWS, COLUMNS)


@cache
def drawn() -> Tensor:
    """Activations, some with blocks that stand out."""
    x = torch.randn(max(COUNTS), COLUMNS, generator=torch.Generator().manual_seed(1))
    x[::3, COLUMNS // 2 + 1] *= 50
    x[::4, 5:9] *= 30
    return x


def product(library: Library, weight: Product, x: Tensor) -> Tensor:
    x, y = x.contiguous(), torch.full((len(x), weight.rows), 7.0)
    library.calls.draftwood_product(byref(product_matrix(weight)), x.data_ptr(), len(x), y.data_ptr())
    return y


def gap(said: Tensor, right: Tensor) -> float:
    return float((said - right).abs().max() / right.abs().max())


def company_faults(library: Library, weight: Product) -> list[int]:
    """Passes of the last `count` rows in which one has other bits than alone."""
    x = drawn()
    alone = torch.cat([product(library, weight, row[None]) for row in x])
    return [n for n in COUNTS if not torch.equal(product(library, weight, x[-n:]), alone[-n:])]


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("kind", INTEGERS)
def test_product_is_exact_but_for_the_rounding_of_activations(kind, level):
    said, weight = product(opened(level), Product((weights(kind),)), drawn()), unpack(weights(kind)).double()
    assert gap(said, twin.rounded(drawn()) @ weight.T) < 3e-6
    assert 1e-4 < gap(said, drawn().double() @ weight.T) < 1e-2


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("kind", FLOATS)
def test_product_of_floats_rounds_no_activation(kind, level):
    said, weight = product(opened(level), Product((weights(kind),)), drawn()), unpack(weights(kind)).double()
    assert gap(said, drawn().double() @ weight.T) < 3e-6
    assert gap(said, twin.rounded(drawn()) @ weight.T) > 1e-4, "the twin: rounded ones would show"


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("kind", Kind)
def test_token_has_the_same_bits_in_every_company(kind, level):
    assert company_faults(opened(level), Product((weights(kind),))) == []


def test_sum_order_that_depends_on_the_pass_would_show():
    """The twin: the columns in two halves, added in the end, wherever there are several tokens."""
    whole = weights(Kind.F32)
    left, right = (
        gguf_blocks.packed_from_blocks(part.contiguous().view(torch.uint8), "F32", ROWS, COLUMNS // 2)
        for part in unpack(whole).split(COLUMNS // 2, dim=1)
    )
    x, n = drawn(), COLUMNS // 2
    halves = product(opened(BEST), Product((left,)), x[:, :n]) + product(opened(BEST), Product((right,)), x[:, n:])
    assert not torch.equal(halves, product(opened(BEST), Product((whole,)), x))


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_XS])
def test_wrong_scale_of_one_block_would_show(kind):
    """The twin: another whole scale for one block of one group."""
    packed = weights(kind)
    data = packed.data.clone()
    data[64 + 16 * 3 + 2] ^= 4
    wrong = replace(packed, data=data)
    said, right = (product(opened(BEST), Product((p,)), drawn()).double() for p in (wrong, packed))
    assert (said != right).any(0).nonzero().flatten().tolist() == [2]
    assert gap(said[:, 2], twin.rounded(drawn()) @ unpack(packed)[2].double()) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("kind", Kind)
def test_every_level_gives_the_same_bits(kind):
    x, weight = drawn()[:20], Product((weights(kind),))
    first, *rest = (product(opened(name), weight, x) for name in (BEST, *OTHERS))
    assert rest and all(torch.equal(first, other) for other in rest)


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("kinds", [(Kind.Q4_K, Kind.Q6_K), (Kind.Q8_0, Kind.F16, Kind.IQ4_NL), (Kind.F32, Kind.Q4_0)])
def test_parts_are_the_products_of_their_rows(kinds, level):
    library, parts = opened(level), [gguf_blocks.packed(kind, 21 + 16 * i, COLUMNS) for i, kind in enumerate(kinds)]
    bias = torch.arange(float(sum(p.rows for p in parts)))
    for x in (drawn()[:1], drawn()[:7], drawn()[:33]):
        apart = torch.cat([product(library, Product((p,)), x) for p in parts], dim=1)
        assert torch.equal(product(library, Product.of(parts, bias), x), apart + bias)
    assert company_faults(library, Product.of(parts, bias)) == []


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("kind", Kind)
def test_row_that_is_no_number_stays_alone(kind, level):
    x = drawn()[:5].clone()
    right = product(opened(level), Product((weights(kind),)), x)
    x[3, 100] = torch.nan
    said = product(opened(level), Product((weights(kind),)), x)
    assert said[3].isnan().all() and torch.equal(said[[0, 1, 2, 4]], right[[0, 1, 2, 4]])


def test_any_number_of_threads_gives_the_same_bits():
    library, parts = opened(BEST), [weights(Kind.Q4_K), weights(Kind.Q6_K), weights(Kind.BF16)]
    try:
        right = product(library, Product.of(parts), drawn()[:20])
        for threads in (2, 3):
            library.threads(threads)
            assert torch.equal(product(library, Product.of(parts), drawn()[:20]), right)
    finally:
        library.threads(1)

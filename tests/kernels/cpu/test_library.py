"""The compiled product says what its plain twin says, in the same bits whoever else computes, at every level."""

import multiprocessing
import sys
import threading
from ctypes import byref
from functools import cache

import pytest
import torch
from torch import Tensor

import kernel_arithmetic as twin
import native_levels
from draftwood.kernels.cpu.library import Library
from draftwood.models.backends.int8_native_arguments import matrix
from draftwood.models.backends.quantised_blocks import Kind, Packed, pack, unpack
from native_levels import BEST, EVERY_LEVEL, OTHERS

SHAPES = [(64, 64), (16, 32), (7, 96), (61, 320), (100, 608)]  # 608 is more blocks than the matrix unit takes in one go
ODD = [(20, 70), (5, 33), (33, 8), (1, 1)]  # only bytes can have these
MADE = [Kind.Q4_1, Kind.Q8_0]  # from floats
COUNTS = [*range(1, 21), 33]
OPENED: dict[str, Library] = {}


def opened(name: str) -> Library:
    return OPENED.setdefault(name, native_levels.opened(name))


@cache
def weights(rows: int, columns: int, kind: Kind) -> Packed:
    noise = torch.Generator().manual_seed(rows * columns)
    w = torch.randn(rows, columns, generator=noise)
    if kind is Kind.Q4_1:
        step, low = (torch.rand(2, rows, columns // 32, 1, generator=noise) + 0.5).half().float() / 64
        nibbles = torch.randint(0, 16, (rows, columns // 32, 32), generator=noise)
        nibbles[..., 0], nibbles[..., 1] = 0, 15
        w = (step * nibbles - 8 * low).flatten(1)
    packed = pack(w)
    assert packed.kind == kind
    return packed


def drawn(count: int, columns: int) -> Tensor:
    """Rows of which some have blocks that stand out."""
    noise = torch.Generator().manual_seed(count)
    x = torch.randn(count, columns, generator=noise)
    x[::3, columns // 2] *= 50
    return x


def product(library: Library, packed: Packed, x: Tensor, bias: Tensor | None = None) -> Tensor:
    x = x.contiguous()
    made = matrix(packed, bias)
    y = torch.full((len(x), packed.rows), 7.0)
    library.calls.draftwood_product(byref(made), x.data_ptr(), len(x), y.data_ptr())
    return y


def cases() -> list[tuple[int, int, Kind]]:
    return [*((r, c, kind) for r, c in SHAPES for kind in MADE), *((r, c, Kind.Q8_0) for r, c in ODD)]


@pytest.fixture(autouse=True)
def one_thread():
    """Behind every test: whoever comes next is not to find helpers awake."""
    yield
    for library in OPENED.values():
        library.threads(1)


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize(("rows", "columns", "kind"), cases())
def test_product_is_what_the_twin_says(level, rows, columns, kind):
    packed = weights(rows, columns, kind)
    for count in COUNTS:
        x = drawn(count, columns)
        said, right = product(opened(level), packed, x), twin.product(x, unpack(packed))
        assert (said - right).abs().max() < 1e-5 * right.abs().max(), count


def test_product_of_unrounded_rows_is_another():
    packed, x = weights(61, 320, Kind.Q8_0), drawn(5, 320)
    right = x.double() @ unpack(packed).double().T
    assert (product(opened(BEST), packed, x) - right).abs().max() > 1e-4 * right.abs().max()


def test_bias_is_added():
    packed, x = weights(20, 70, Kind.Q8_0), drawn(3, 70)
    bias = torch.arange(20.0)
    plain = product(opened(BEST), packed, x)
    assert torch.equal(product(opened(BEST), packed, x, bias), plain + bias)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "columns", "kind"), cases())
def test_levels_give_the_same_bits(rows, columns, kind):
    packed = weights(rows, columns, kind)
    levels = [opened(name) for name in (BEST, *OTHERS)]
    for count in COUNTS:
        first, *rest = (product(library, packed, drawn(count, columns)) for library in levels)
        assert all(torch.equal(first, other) for other in rest), count


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize(("rows", "columns", "kind"), cases())
def test_row_has_the_same_bits_in_every_company(level, rows, columns, kind):
    packed, x = weights(rows, columns, kind), drawn(33, columns)
    alone = torch.cat([product(opened(level), packed, row[None]) for row in x])
    for count in COUNTS:
        assert torch.equal(product(opened(level), packed, x[-count:]), alone[-count:]), count


@pytest.mark.slow
@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("kind", MADE)
def test_row_has_the_same_bits_where_not_all_weights_stay_near(level, kind):
    """Rows so long that a few groups of them fill the second-level cache, in more than one tile of tokens."""
    columns = 12288 if kind is Kind.Q8_0 else 24576
    packed, x = weights(72, columns, kind), drawn(19, columns)
    said = product(opened(level), packed, x)
    assert torch.equal(said, torch.cat([product(opened(level), packed, row[None]) for row in x]))
    right = twin.product(x, unpack(packed))
    assert (said - right).abs().max() < 1e-4 * right.abs().max()


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("count", [1, 3, 7, 20])
def test_row_that_is_no_number_stays_alone(level, kind, count):
    packed, x = weights(61, 320, kind), drawn(count, 320)
    right = product(opened(level), packed, x)
    for wrong in (torch.nan, torch.inf, -torch.inf, 3e38):
        for row in {0, count // 2, count - 1}:
            broken = x.clone()
            broken[row, 100] = wrong
            said = product(opened(level), packed, broken)
            others = [i for i in range(count) if i != row]
            assert said[row].isnan().all() and torch.equal(said[others], right[others])


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("kind", MADE)
def test_zeros_give_zeros(level, kind):
    x = drawn(9, 320)
    x[4], x[5] = 0.0, 1e-35
    said = product(opened(level), weights(61, 320, kind), x)
    assert not said[4:6].any() and said[3].all()


# --- threads


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("kind", MADE)
def test_any_number_of_threads_gives_the_same_bits(level, kind):
    packed, x = weights(100, 608, kind), drawn(20, 608)
    right = product(opened(level), packed, x)
    for threads in (2, 3, 1, 2):
        opened(level).threads(threads)
        for count in (1, 5, 20):
            assert torch.equal(product(opened(level), packed, x[:count]), right[:count])


def test_calls_at_once_are_right_while_the_threads_change():
    library = opened(BEST)
    packed, x = weights(100, 608, Kind.Q4_1), drawn(20, 608)
    right = product(library, packed, x)
    wrong: list[int] = []
    over = threading.Event()

    def call(count: int) -> None:
        for turn in range(300):
            if not torch.equal(product(library, packed, x[:count]), right[:count]):
                wrong.append(turn)

    def change() -> None:
        turn = 0
        while not over.wait(1e-4):
            turn += 1
            library.threads(1 + turn % 3)

    callers = [threading.Thread(target=call, args=(count,), daemon=True) for count in (20, 3)]
    changer = threading.Thread(target=change, daemon=True)
    for thread in (*callers, changer):
        thread.start()
    for thread in callers:
        thread.join(timeout=60)
    over.set()
    changer.join(timeout=60)
    assert not any(thread.is_alive() for thread in (*callers, changer)), "somebody waits for ever"
    assert wrong == []


@pytest.mark.skipif(sys.platform != "linux", reason="fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_still_computes():
    library = opened(BEST)
    library.threads(3)
    packed, x = weights(100, 608, Kind.Q4_1), drawn(20, 608)
    right = product(library, packed, x)
    fork = multiprocessing.get_context("fork")
    same = fork.Value("i", 0)

    def child() -> None:
        both = []
        for threads in (3, 2):
            library.threads(threads)
            both.append(torch.equal(product(library, packed, x), right))
        same.value = int(all(both))

    process = fork.Process(target=child)
    process.start()
    process.join(timeout=30)
    if process.is_alive():
        process.kill()
    assert process.exitcode == 0 and same.value == 1
    assert torch.equal(product(library, packed, x), right), "the parent goes on"


# The plain twin itself rounds as the kernels say they do.


def plain_rows(rows: int = 6, columns: int = 96) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def error(x: torch.Tensor) -> torch.Tensor:
    """By row and block, in steps: 127ths of the block's greatest number."""
    wide = torch.nn.functional.pad(x.double(), (0, -x.shape[1] % 32)).view(len(x), -1, 32)
    left = torch.nn.functional.pad(twin.rounded(x), (0, -x.shape[1] % 32)).view(len(x), -1, 32)
    return (wide - left).abs().amax(-1) / (wide.abs().amax(-1) / 127)


def test_a_number_moves_by_half_a_step_of_its_block():
    x = plain_rows(50, 80)
    assert 0.3 < error(x).max() <= 0.5001


def test_a_block_that_stands_out_moves_by_a_hundredth_of_that():
    x = plain_rows()
    x[2, 40] = 1000.0
    steps = error(x)
    assert steps[2, 1] <= 0.51 / 128
    steps[2, 1] = 1
    assert steps.min() > 0.1, "the other blocks have one digit"


def test_whole_numbers_stay_as_they_are():
    x = plain_rows(4, 64).mul(40).round().clamp(-127, 127)
    x[:, ::32] = 127
    assert (twin.rounded(x) - x).abs().max() < 1e-5


def test_a_row_is_rounded_by_what_it_holds_itself():
    x = plain_rows()
    for row in range(len(x)):
        assert torch.equal(twin.rounded(x[row : row + 1])[0], twin.rounded(x)[row])


def test_zeros_stay_zeros_and_what_is_no_number_stays_none():
    x = plain_rows()
    right = twin.rounded(x)
    x[1], x[3, 5], x[4, 70] = 0.0, torch.nan, -torch.inf
    said = twin.rounded(x)
    assert not said[1].any() and said[3].isnan().all() and said[4].isnan().all()
    assert torch.equal(said[[0, 2, 5]], right[[0, 2, 5]])


def test_product_is_near_the_product_of_the_floats():
    x, weight = plain_rows(), plain_rows(20)
    right = x.double() @ weight.double().T
    gap = (twin.product(x, weight) - right).abs().mean() / right.std()
    assert 1e-4 < gap < 1e-2

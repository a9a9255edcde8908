"""What the kernels leave of a row is what stock operations leave, whoever stands beside it, at every level."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import native_levels
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.shaping import Shaping
from draftwood.core.sampling.support import Few, Uncut
from draftwood.kernels.cpu.library import Library
from draftwood.models.backends.nucleus import Nucleus
from native_levels import EVERY_LEVEL

OPTIONS = [
    {"top_p": 0.95},
    {"top_p": 0.3, "temperature": 0.6},
    {"top_p": 0.999999},
    {"min_p": 0.05},
    {"min_p": 0.01, "top_p": 0.9, "temperature": 1.4},
    {"top_p": 1e-6},
    {"min_p": 1.0},
    {"top_p": 0.5, "temperature": 1e-4},
    {"temperature": 0.0},
]


def rows(count: int, vocab_size: int, seed: int = 0) -> Tensor:
    """Sharp ones and flat ones."""
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(count, vocab_size, generator=noise) * torch.linspace(0.1, 6, count)[:, None]


def by_kernels(library: Library, x: Tensor, options: list[SamplingParams], at: list[int] | None = None) -> Few | None:
    at = list(range(len(x))) if at is None else at
    rows = torch.tensor(at, dtype=torch.int64)
    return Nucleus(library)(Shaping(options, "cpu").uncut(x, rows, range(len(options))))


@pytest.mark.parametrize("vocab_size", [1, 5, 16, 33, 1000, 49_152])
@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_distributions_are_those_of_stock_operations(level: str, vocab_size: int) -> None:
    x = rows(6, vocab_size)
    for options in OPTIONS:
        params = [SamplingParams(**{"temperature": 1.0, **options})] * len(x)  # type: ignore[arg-type]
        found, want = by_kernels(native_levels.opened(level), x, params), Shaping(params, "cpu").probs(x[:, None])[:, 0]
        assert found is not None
        probs = found.dense()
        torch.testing.assert_close(probs, want, atol=1e-6, rtol=2e-5)
        apart = (probs > 0) != (want > 0)
        assert probs[apart].sum() + want[apart].sum() < 1e-5, f"{options}: only what stands at the very edge may differ"
        assert probs.sum(1, dtype=torch.float64).tolist() == pytest.approx([1.0] * len(x), abs=1e-5)
        table = found.table()
        assert table.ids is not None and (table.ids.diff(dim=1) >= 0).all(), "tokens rise, empty columns stand last"


def test_control_another_goal_leaves_other_tokens() -> None:
    x, library = rows(6, 1000), native_levels.opened(native_levels.BEST)
    found = by_kernels(library, x, [SamplingParams(temperature=1.0, top_p=0.95)] * 6)
    want = Shaping([SamplingParams(temperature=1.0, top_p=0.93)] * 6, "cpu").probs(x[:, None])[:, 0]
    assert found is not None and ((found.dense() > 0) != (want > 0)).sum() > 20


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_the_same_to_the_last_bit_in_any_company(threads: int) -> None:
    x, library = rows(9, 3000), native_levels.opened(native_levels.BEST)
    params = [SamplingParams(**{"temperature": 1.0, **options}) for options in OPTIONS]  # type: ignore[arg-type]
    library.threads(threads)
    together = by_kernels(library, x, params)
    assert together is not None
    for b, probs in enumerate(together.dense()):
        alone = by_kernels(library, x, params[b : b + 1], [b])
        assert alone is not None and torch.equal(alone.dense()[0], probs)


def test_equal_tokens_stay_together_and_forbidden_ones_never_come_back() -> None:
    library = native_levels.opened(native_levels.BEST)
    x = torch.zeros(1, 40)
    found = by_kernels(library, x, [SamplingParams(temperature=1.0, top_p=0.3)])
    assert found is not None and len(found.ids) == 40
    x[0, ::2] = -torch.inf
    for top_p in (0.3, 0.99, 1 - 1e-9, 1 - 1e-16):
        found = by_kernels(library, x, [SamplingParams(temperature=1.0, top_p=top_p)])
        assert found is not None and (found.ids % 2 == 1).all() and len(found.ids) == 20


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_no_distribution_is_told(wrong: float) -> None:
    x, library = rows(2, 100), native_levels.opened(native_levels.BEST)
    x[1] = wrong if wrong < 0 else x[1]
    x[1, 50] = wrong
    assert by_kernels(library, x, [SamplingParams(temperature=1.0, top_p=0.9)] * 2) is None
    assert by_kernels(library, x, [SamplingParams(temperature=1.0, top_p=0.9)], [0]) is not None


def test_rows_may_lie_apart_and_must_exist() -> None:
    x, library = rows(4, 64), native_levels.opened(native_levels.BEST)
    params = [SamplingParams(temperature=1.0, top_p=0.9)] * 2
    wide = torch.zeros(4, 80)
    wide[:, :64] = x
    one, two = by_kernels(library, x, params, [2, 0]), by_kernels(library, wide[:, :64], params, [2, 0])
    assert one is not None and two is not None and torch.equal(one.dense(), two.dense())
    for at in ([0, 4], [-2, 0]):
        with pytest.raises(IndexError, match="4 rows of logits"):
            by_kernels(library, x, params, at)
    nothing = by_kernels(library, x, [], [])
    assert nothing is not None and not len(nothing.ids)


@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_who_knows_the_best_token_gets_the_same(level: str) -> None:
    x, library, at = rows(5, 700), native_levels.opened(level), torch.arange(5)
    options = [0.0, 1.0, 0.7, 1.0, 1.0], [0.9] * 5, [0.0, 0.0, 0.0, 0.1, 0.0]
    known = (None, x.argmax(-1), torch.full((5,), -1))
    alone, told, unknown = (Nucleus(library)(Uncut(x, at, *options, best)) for best in known)
    for other in (told, unknown):
        assert alone is not None and other is not None and torch.equal(alone.dense(), other.dense())


@pytest.mark.parametrize("vocab_size", [5, 33, 1000])
@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_a_second_distribution_stands_beside_with_columns_for_the_tokens_asked_for(level: str, vocab_size: int) -> None:
    x, q = rows(5, vocab_size), torch.softmax(rows(3, vocab_size, seed=1), dim=-1)
    cut, at, probs = (
        Nucleus(native_levels.opened(level)),
        torch.tensor([4, -1, 0, 3, 2]),
        torch.tensor([2, 1, -1, 0, 2]),
    )
    options = [1.0] * 5, [0.9, 0.9, 0.5, 0.8, 1.0], [0.0, 0.0, 0.0, 0.0, 0.1]
    noise = torch.Generator().manual_seed(2)
    tokens = torch.stack([torch.randperm(vocab_size, generator=noise)[:4] for _ in at])
    tokens[0, 1:3] = vocab_size  # two places that ask for nothing
    asked = Uncut(x, at, *options)
    alone, found = cut(asked), cut.beside(asked, tokens, q, probs)
    assert alone is not None and found is not None
    assert found.p.dtype == found.q.dtype == torch.float64
    most = int(alone.count.max())
    assert found.p.shape == found.q.shape == found.ids.shape == (5, most + 4 + 1)
    for b, own in enumerate(alone.dense().double()):
        kept, extra = found.ids[b, :most], found.ids[b, most:]
        real = kept[kept < vocab_size]
        assert torch.equal(real, own.nonzero()[:, 0]) and torch.equal(found.p[b, : len(real)], own[real])
        assert (kept[len(real) :] == vocab_size).all() and not found.p[b, len(real) :].any()
        for c, token in enumerate(tokens[b].tolist()):
            column = int(found.columns[b, c])
            assert found.ids[b, column] == token if token < vocab_size else found.p[b, column] == 0
            assert column < len(real) or column == most + c
        assert extra[-1] == vocab_size and not set(extra[extra < vocab_size].tolist()) & set(real.tolist())
        there = found.ids[b] < vocab_size
        if probs[b] < 0 or at[b] < 0:
            assert not found.q[b].any()
            continue
        assert torch.equal(found.q[b, there], q[probs[b], found.ids[b, there]].double())
        assert found.q[b].sum().item() == pytest.approx(1.0, abs=1e-6) and not found.q[b, :-1][~there[:-1]].any()


def test_distributions_beside_must_exist() -> None:
    x, cut = rows(2, 40), Nucleus(native_levels.opened(native_levels.BEST))
    options, q = ([1.0] * 2, [0.9] * 2, [0.0] * 2), torch.full((3, 40), 1 / 40)
    tokens = torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(IndexError, match="3 distributions"):
        cut.beside(Uncut(x, torch.arange(2), *options), tokens, q, torch.tensor([0, 3]))
    with pytest.raises(IndexError, match="2 rows of logits"):
        cut.beside(Uncut(x, torch.tensor([0, 2]), *options), tokens, q, torch.tensor([0, 1]))
    x[1, 7] = torch.nan
    assert cut.beside(Uncut(x, torch.arange(2), *options), tokens, q, torch.tensor([0, 1])) is None


@pytest.mark.parametrize("wrong", ["logits", "at", "temperature"])
def test_what_kernels_would_misread_is_refused(wrong: str) -> None:
    cut, right = (
        Nucleus(native_levels.opened(native_levels.BEST)),
        Uncut(rows(2, 40), torch.arange(2), [1.0] * 2, [0.9] * 2, [0.0] * 2),
    )
    assert cut(right) is not None
    other = {"logits": right.logits.double(), "at": right.at.int(), "temperature": [1.0]}
    with pytest.raises(TypeError, match="kernels read float32"):
        cut(replace(right, **{wrong: other[wrong]}))

"""The kernels keep the same tokens of a distribution as stock operations, whatever else is in the batch, at every level."""

import pytest
import torch
from torch import Tensor

import native_levels
from draftwood.core.sampling.keys import digits, fold
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.probs import TokenProbs
from draftwood.core.sampling.random import invert
from draftwood.core.sampling.sampler import Sampler
from draftwood.kernels.cpu.library import Library
from draftwood.models.backends.kernel_sampling import Nucleus
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


def params(temperature: list[float], top_p: list[float], min_p: list[float]) -> list[SamplingParams]:
    each = zip(temperature, top_p, min_p, strict=True)
    return [SamplingParams(temperature=t, top_p=p, min_p=m) for t, p, m in each]


def by_kernels(
    library: Library, x: Tensor, options: list[SamplingParams], at: list[int] | None = None
) -> TokenProbs | None:
    at = list(range(len(x))) if at is None else at
    rows = torch.tensor(at, dtype=torch.int64)
    return Nucleus(library).probs(x, rows, options)


@pytest.mark.parametrize("vocab_size", [1, 5, 16, 33, 1000, 49_152])
@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_distributions_are_those_of_stock_operations(level: str, vocab_size: int) -> None:
    x = rows(6, vocab_size)
    for options in OPTIONS:
        params = [SamplingParams(**{"temperature": 1.0, **options})] * len(x)  # type: ignore[arg-type]
        found, want = by_kernels(native_levels.opened(level), x, params), Sampler(params, "cpu").dense(x[:, None])[:, 0]
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
    want = Sampler([SamplingParams(temperature=1.0, top_p=0.93)] * 6, "cpu").dense(x[:, None])[:, 0]
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
    assert found is not None and found.ids is not None and len(found.ids) == 40
    x[0, ::2] = -torch.inf
    for top_p in (0.3, 0.99, 1 - 1e-9, 1 - 1e-16):
        found = by_kernels(library, x, [SamplingParams(temperature=1.0, top_p=top_p)])
        assert found is not None and found.ids is not None
        assert (found.ids % 2 == 1).all() and len(found.ids) == 20


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
    assert nothing is not None and not len(nothing)


@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_who_knows_the_best_token_gets_the_same(level: str) -> None:
    x, library, at = rows(5, 700), native_levels.opened(level), torch.arange(5)
    options = params([0.0, 1.0, 0.7, 1.0, 1.0], [0.9] * 5, [0.0, 0.0, 0.0, 0.1, 0.0])
    known = (None, x.argmax(-1), torch.full((5,), -1))
    alone, told, unknown = (Nucleus(library).probs(x, at, options, best) for best in known)
    for other in (told, unknown):
        assert alone is not None and other is not None and torch.equal(alone.dense(), other.dense())


@pytest.mark.parametrize("vocab_size", [5, 33, 1000])
@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_a_second_distribution_has_the_same_columns_and_some_asked_for(level: str, vocab_size: int) -> None:
    x, q = rows(5, vocab_size), torch.softmax(rows(3, vocab_size, seed=1), dim=-1)
    cut, at, probs = (
        Nucleus(native_levels.opened(level)),
        torch.tensor([4, -1, 0, 3, 2]),
        torch.tensor([2, 1, -1, 0, 2]),
    )
    options = params([1.0] * 5, [0.9, 0.9, 0.5, 0.8, 1.0], [0.0, 0.0, 0.0, 0.0, 0.1])
    noise = torch.Generator().manual_seed(2)
    tokens = torch.stack([torch.randperm(vocab_size, generator=noise)[:4] for _ in at])
    tokens[0, 1:3] = vocab_size  # two places that ask for nothing
    alone, both = cut.probs(x, at, options), cut.aligned(x, at, options, None, tokens, q, probs)
    assert alone is not None and alone.count is not None and both is not None
    p, beside, ids = both.p.prob, both.q.prob, both.p.ids
    assert ids is not None and p.dtype == beside.dtype == torch.float64
    most = int(alone.count.max())
    assert p.shape == beside.shape == ids.shape == (5, most + 4 + 1)
    for b, own in enumerate(alone.dense().double()):
        kept, extra = ids[b, :most], ids[b, most:]
        real = kept[kept < vocab_size]
        assert torch.equal(real, own.nonzero()[:, 0]) and torch.equal(p[b, : len(real)], own[real])
        assert (kept[len(real) :] == vocab_size).all() and not p[b, len(real) :].any()
        for c, token in enumerate(tokens[b].tolist()):
            column = int(both.columns[b, c])
            assert ids[b, column] == token if token < vocab_size else p[b, column] == 0
            assert column < len(real) or column == most + c
        assert extra[-1] == vocab_size and not set(extra[extra < vocab_size].tolist()) & set(real.tolist())
        there = ids[b] < vocab_size
        if probs[b] < 0 or at[b] < 0:
            assert not beside[b].any()
            continue
        assert torch.equal(beside[b, there], q[probs[b], ids[b, there]].double())
        assert beside[b].sum().item() == pytest.approx(1.0, abs=1e-6) and not beside[b, :-1][~there[:-1]].any()


def test_distributions_beside_must_exist() -> None:
    x, cut = rows(2, 40), Nucleus(native_levels.opened(native_levels.BEST))
    options, q = params([1.0] * 2, [0.9] * 2, [0.0] * 2), torch.full((3, 40), 1 / 40)
    tokens = torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(IndexError, match="3 draft distributions"):
        cut.aligned(x, torch.arange(2), options, None, tokens, q, torch.tensor([0, 3]))
    with pytest.raises(IndexError, match="2 rows of logits"):
        cut.aligned(x, torch.tensor([0, 2]), options, None, tokens, q, torch.tensor([0, 1]))
    x[1, 7] = torch.nan
    assert cut.aligned(x, torch.arange(2), options, None, tokens, q, torch.tensor([0, 1])) is None


@pytest.mark.parametrize("wrong", ["logits", "at", "params"])
def test_what_kernels_would_misread_is_refused(wrong: str) -> None:
    cut = Nucleus(native_levels.opened(native_levels.BEST))
    right = {"logits": rows(2, 40), "at": torch.arange(2), "params": params([1.0] * 2, [0.9] * 2, [0.0] * 2)}
    assert cut.probs(**right) is not None
    other = {"logits": right["logits"].double(), "at": right["at"].int(), "params": right["params"][:1]}
    with pytest.raises(TypeError, match="kernels read float32"):
        cut.probs(**{**right, wrong: other[wrong]})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("vocab_size", [1, 5, 64, 65, 1000, 49_152])
@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_a_pick_is_that_of_stock_operations(level: str, vocab_size: int) -> None:
    x, cut = rows(40, vocab_size), Nucleus(native_levels.opened(level))
    u, at = digits(fold(torch.arange(40), vocab_size)), torch.arange(40)
    for options in [*OPTIONS, {}, {"temperature": 0.7}]:
        given = [SamplingParams(**{"temperature": 1.0, **options})] * 40  # type: ignore[arg-type]
        token = cut.pick(x, at, given, None, u)
        truncated = "top_p" in options or "min_p" in options or not given[0].temperature
        if truncated:
            packed = cut.probs(x, at, given)
            assert packed is not None
            assert torch.equal(token, packed.pick(u, torch.ones(40, dtype=torch.bool))), "the same to the last bit"
        stock = invert(Sampler(given, "cpu").dense(x[:, None])[:, 0], u)
        assert (token != stock).sum() <= 1, "only what stands at the very edge may differ"
        assert torch.equal(cut.pick(x, at[3:4], given[:1], None, u[3:4]), token[3:4]), "alone as in a batch"


def test_a_pick_follows_its_distribution() -> None:
    cut, x = Nucleus(native_levels.opened(native_levels.BEST)), rows(3, 100)[1:2]
    u, given = digits(fold(torch.arange(20_000), 3)), [SamplingParams(temperature=1.0)] * 20_000
    token = cut.pick(x, torch.zeros(20_000, dtype=torch.int64), given, None, u)
    share = torch.bincount(token, minlength=100) / 20_000
    assert (share - x[0].softmax(0)).abs().max() < 4 * (0.25 / 20_000) ** 0.5


def test_nothing_is_picked_where_nothing_is_asked_or_a_row_is_no_distribution() -> None:
    cut, x = Nucleus(native_levels.opened(native_levels.BEST)), rows(3, 300)
    x[2, 7] = torch.nan
    u, given = digits(fold(torch.arange(3), 3)), [SamplingParams(temperature=1.0)] * 3
    assert (cut.pick(x, torch.tensor([0, -1, 2]), given, None, u) >= 0).tolist() == [True, False, False]
    with pytest.raises(IndexError, match="3 rows of logits"):
        cut.pick(x, torch.tensor([0, 1, 3]), given, None, u)
    with pytest.raises(TypeError, match="three float64 uniforms"):
        cut.pick(x, torch.arange(3), given, None, u.float())

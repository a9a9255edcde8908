"""The distribution of a row is what plain sampling would use, whatever stands beside it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.shaping import Shaping, top
from draftwood.core.sampling.support import Few, Uncut


def probs(logits: torch.Tensor, *params: SamplingParams) -> torch.Tensor:
    return Shaping(params, "cpu").probs(logits[:, None])[:, 0]


def by_hand(x: torch.Tensor, p: SamplingParams) -> torch.Tensor:
    """An independent reading, by sorting."""
    if p.temperature == 0:
        return torch.nn.functional.one_hot(x.argmax(), len(x)).to(x.dtype)
    x = x / p.temperature
    prob = torch.softmax(x, -1)
    keep = prob >= p.min_p * prob.max()
    if p.top_k:
        kth = x.masked_fill(~keep, -torch.inf).sort(descending=True).values[min(p.top_k, len(x)) - 1]
        keep &= x >= kth
    prob = torch.where(keep, prob, 0.0)
    prob = prob / prob.sum()
    order = prob.argsort(descending=True)
    before = prob[order].cumsum(0) - prob[order]
    floor = prob[order][before < p.top_p].min()
    prob = torch.where(prob >= floor, prob, 0.0)
    return prob / prob.sum()


options = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 40, 5000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.9]),
)


@given(st.lists(options, min_size=1, max_size=5), st.integers(0, 10_000))
def test_every_row_gets_the_distribution_it_would_get_alone(params: list[SamplingParams], seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(len(params), 700, generator=noise, dtype=torch.float64)
    together = probs(logits, *params)
    for b, p in enumerate(params):
        assert torch.equal(together[b : b + 1], probs(logits[b : b + 1], p))
        assert torch.allclose(together[b], by_hand(logits[b], p), atol=1e-12)


def test_top_p_grows_its_top_k_until_the_mass_is_reached() -> None:
    flat = torch.zeros(1, 5000, dtype=torch.float64)
    flat[0, :3000] += torch.linspace(1e-6, 0, 3000, dtype=torch.float64)
    kept = (probs(flat, SamplingParams(temperature=1, top_p=0.5)) > 0).sum()
    assert 2490 < kept < 2510


def test_ties_are_kept_or_cut_together() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    assert (probs(logits, SamplingParams(temperature=1, top_k=2)) > 0).sum() == 4


def test_the_greatest_of_a_row_are_found_by_groups_as_by_searching_it_whole() -> None:
    for width, k in ((5, 5), (2048, 3), (8192, 10), (8195, 10), (49152, 10)):
        noise = torch.Generator().manual_seed(width)
        prob = torch.softmax(3 * torch.randn(2, 3, width, generator=noise), dim=-1)
        prob[0, 0] = 0.0  # nothing but ties
        value, column = top(prob, k)
        assert torch.equal(value, prob.topk(k).values) and torch.equal(prob.gather(-1, column), value)
        assert all(len(set(row)) == k for row in column.flatten(0, 1).tolist())


def test_greedy_rows_keep_their_ranks_where_nothing_is_drawn() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])[:, None]
    shaping = Shaping([SamplingParams(temperature=0), SamplingParams(temperature=0.5)], "cpu")
    ranked, plain = shaping.probs(logits, ranked=True), shaping.probs(logits)
    assert torch.allclose(ranked[0], torch.softmax(logits[0], -1)) and torch.equal(ranked[1], plain[1])
    assert plain[0].tolist() == [[1.0, 0.0, 0.0]] == shaping.certain(ranked[:, 0])[:1].tolist()


def test_a_distribution_of_zeros_stays_one_when_greedy_rows_become_certain() -> None:
    greedy = Shaping([SamplingParams()] * 2, "cpu")
    assert greedy.certain(torch.tensor([[0.2, 0.5, 0.3], [0.0, 0.0, 0.0]])).tolist() == [[0, 1, 0], [0, 0, 0]]


def test_temperature_is_all_there_is_to_a_ranked_distribution_that_nothing_truncates() -> None:
    rows = [SamplingParams(), SamplingParams(temperature=0.7)]
    shaping, x = Shaping(rows, "cpu"), torch.randn(2, 1, 50)
    temperature = shaping.temperature()
    assert temperature == [1.0, 0.7]
    torch.testing.assert_close(
        shaping.probs(x, ranked=True), (x / torch.tensor(temperature)[:, None, None]).softmax(-1)
    )
    for cut in (SamplingParams(top_k=3), SamplingParams(top_p=0.9), SamplingParams(min_p=0.1)):
        assert Shaping([*rows, cut], "cpu").temperature() is None


def halved(x: Uncut) -> Few | None:
    """A backend's kernels, whose distributions are those of stock operations with half the weight: so it shows who made a distribution."""
    options = zip(x.temperature, x.top_p, x.min_p, strict=True)
    params = [SamplingParams(temperature=t, top_p=g, min_p=m) for t, g, m in options]
    found = Shaping(params, "cpu").support(x.logits[x.at])
    return None if found is None else replace(found, prob=found.prob / 2)


def test_who_makes_a_distribution_is_decided_by_the_rows_own_options() -> None:
    kernels = [SamplingParams(), SamplingParams(temperature=0.7, top_p=0.9), SamplingParams(temperature=1.0, min_p=0.1)]
    stock = [SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=4, top_p=0.9)]
    params = [kernels[0], stock[0], kernels[1], stock[1], kernels[2]]
    x = torch.randn(5, 2, 50, generator=torch.Generator().manual_seed(3))
    together = Shaping(params, "cpu").probs(x, cut=halved)
    for b, each in enumerate(params):
        alone = Shaping([each], "cpu").probs(x[b : b + 1], cut=halved)[0]
        if each.greedy:
            alone = alone / 2  # alone it needs nobody: the best token is looked up
        assert torch.equal(together[b], alone)
        assert together[b].sum(-1).tolist() == pytest.approx([0.5 if each in kernels else 1.0] * 2)
    few = Shaping(params, "cpu").support(x[:, 0], halved)
    assert few is not None and torch.equal(few.dense(), together[:, 0]), "one that keeps all its tokens is among them"


def test_where_a_backend_finds_no_distribution_stock_operations_are_asked() -> None:
    params = [SamplingParams(temperature=1.0, top_p=0.9)]
    x = torch.randn(1, 1, 50, generator=torch.Generator().manual_seed(3))
    assert torch.equal(Shaping(params, "cpu").probs(x, cut=lambda x: None), Shaping(params, "cpu").probs(x))

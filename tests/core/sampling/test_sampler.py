"""The distribution of a sequence is what plain sampling would use, whatever else is in the batch."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from draftwood.core.forward import ForwardOutput
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.probs import TokenProbs
from draftwood.core.sampling.sampler import Sampler, best_of
from draftwood.testing.host_reads import HostReads, as_if_on_a_device


def probs(logits: torch.Tensor, *params: SamplingParams) -> torch.Tensor:
    return Sampler(params, "cpu").dense(logits[:, None])[:, 0]


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


def test_greedy_rows_keep_their_ranks_where_nothing_is_drawn() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])[:, None]
    sampler = Sampler([SamplingParams(temperature=0), SamplingParams(temperature=0.5)], "cpu")
    ranked, plain = sampler.dense(logits, ranked=True), sampler.dense(logits)
    assert torch.allclose(ranked[0], torch.softmax(logits[0], -1)) and torch.equal(ranked[1], plain[1])
    assert plain[0].tolist() == [[1.0, 0.0, 0.0]] == sampler.certain(ranked[:, 0])[:1].tolist()


def test_a_distribution_of_zeros_stays_one_when_greedy_rows_become_certain() -> None:
    greedy = Sampler([SamplingParams()] * 2, "cpu")
    assert greedy.certain(torch.tensor([[0.2, 0.5, 0.3], [0.0, 0.0, 0.0]])).tolist() == [[0, 1, 0], [0, 0, 0]]


def test_temperature_is_all_there_is_to_a_ranked_distribution_that_nothing_truncates() -> None:
    rows = [SamplingParams(), SamplingParams(temperature=0.7)]
    sampler, x = Sampler(rows, "cpu"), torch.randn(2, 1, 50)
    temperature = sampler.temperature()
    assert temperature == [1.0, 0.7]
    torch.testing.assert_close(
        sampler.dense(x, ranked=True), (x / torch.tensor(temperature)[:, None, None]).softmax(-1)
    )
    for cut in (SamplingParams(top_k=3), SamplingParams(top_p=0.9), SamplingParams(min_p=0.1)):
        assert Sampler([*rows, cut], "cpu").temperature() is None


class Halved:
    """Kernels whose distributions are those of stock operations with half the weight: so it shows who made one."""

    def probs(
        self, logits: Tensor, at: Tensor, params: Sequence[SamplingParams], best: Any = None
    ) -> TokenProbs | None:
        found = Sampler(params, "cpu")._packed(logits[at])
        return None if found is None else replace(found, prob=found.prob / 2)


class Failing(Halved):
    def probs(self, *given: Any) -> TokenProbs | None:
        return None


def by(kernels: Any, logits: Tensor, params: list[SamplingParams]) -> TokenProbs:
    at = torch.arange(len(logits))
    return Sampler(params, "cpu").probs(ForwardOutput(logits, logits, at, kernels=kernels), at, range(len(at)))


def test_who_makes_a_distribution_is_decided_by_the_sequences_own_options() -> None:
    kernels = [SamplingParams(), SamplingParams(temperature=0.7, top_p=0.9), SamplingParams(temperature=1.0, min_p=0.1)]
    stock = [SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=4, top_p=0.9)]
    x = torch.randn(5, 50, generator=torch.Generator().manual_seed(3))
    for params in ([kernels[0], stock[0], kernels[1], stock[1], kernels[2]], [*kernels, stock[1]], kernels):
        sparse = stock[0] not in params
        together = by(Halved(), x[: len(params)], params)
        assert (together.ids is not None) == sparse, "one that keeps all its tokens is among them"
        for b, (each, whole) in enumerate(zip(params, together.dense(), strict=True)):
            assert torch.equal(whole, by(Halved(), x[b : b + 1], [each]).dense()[0])
            assert whole.sum().item() == pytest.approx(0.5 if each in kernels else 1.0)


def test_where_kernels_find_no_distribution_stock_operations_are_asked() -> None:
    params = [SamplingParams(temperature=1.0, top_p=0.9)]
    x = torch.randn(1, 50, generator=torch.Generator().manual_seed(3))
    assert torch.equal(by(Failing(), x, params).dense(), by(None, x, params).dense())


@pytest.mark.parametrize(
    "options", [{"top_p": 0.8}, {"top_k": 5}, {"min_p": 0.2}, {"top_p": 0.8, "temperature": 0.6}, {"temperature": 0.0}]
)
def test_sparse_and_dense_distributions_are_the_same(options: dict[str, float]) -> None:
    params = [SamplingParams(**{"temperature": 1.0, **options}), SamplingParams()]  # type: ignore[arg-type]
    x = torch.randn(2, 500, generator=torch.Generator().manual_seed(1)) * 3
    found = by(None, x, params)
    assert found.count is not None
    assert torch.equal(found.dense(), Sampler(params, "cpu").dense(x[:, None])[:, 0])


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_logits_that_are_not_numbers_have_no_best_token_and_no_distribution(wrong: float) -> None:
    x = torch.randn(2, 50)
    x[1, 7] = wrong
    assert best_of(x).tolist() == [int(x[0].argmax()), -1] and best_of(torch.full((1, 3), -torch.inf)).tolist() == [-1]
    for params in (SamplingParams(), SamplingParams(top_k=3, temperature=1.0), SamplingParams(temperature=1.0)):
        assert not by(None, x, [params] * 2).dense()[1].sum() > 0


@pytest.mark.parametrize("ranked", [False, True])
def test_a_device_makes_the_same_distributions_without_a_look(ranked: bool) -> None:
    params = [
        SamplingParams(temperature=0.0), SamplingParams(temperature=1.0), SamplingParams(temperature=0.6, top_p=0.8),
        SamplingParams(temperature=1.3, top_k=4, min_p=0.02), SamplingParams(temperature=1.0, top_p=0.99, top_k=30),
    ]  # fmt: skip
    logits = 3 * torch.randn(5, 4, 700, generator=torch.Generator().manual_seed(2))
    want = Sampler(params, "cpu").dense(logits, ranked)
    with as_if_on_a_device(), HostReads() as reads:
        found = Sampler(params, "cpu").dense(logits, ranked)
    assert reads.total == 0, reads.by_name
    assert ((want > 0) == (found > 0)).all()
    torch.testing.assert_close(found, want)

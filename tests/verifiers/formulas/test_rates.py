"""Acceptance by formula: the fixtures' numbers, the rules themselves, and never above the bound."""

from itertools import pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.errors import OptionError
from draftwood.testing.contracts import Always
from draftwood.testing.exact import acceptance, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, context_free
from draftwood.trees.static import Static
from draftwood.verifiers.formulas import rates
from draftwood.verifiers.formulas.bounds import best_distinct, best_iid
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from draftwood.verifiers.selection import Selection

P = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64)
Q = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
IID = (rates.match_iid, rates.first_iid, rates.rejection_iid, rates.transport_iid, rates.selection_iid)


@pytest.mark.parametrize(
    ("rate", "accepted"),
    [
        (rates.match_iid, (0.2, 0.35)),
        (rates.first_iid, (0.6, 0.65)),
        (rates.rejection_iid, (0.6, 0.72, 0.768, 0.7912)),
        (rates.transport_iid, (0.6, 0.75, 0.793950, 0.831438)),
        (rates.selection_iid, (0.6, 0.79, 0.835, 0.8695)),
        (rates.greedy, (0.6, 23 / 30, 14 / 15, 1.0)),
    ],
)
def test_fixture_a_is_reproduced(rate: Any, accepted: tuple[float, ...]) -> None:
    got = [float(rate(P, Q, k)) for k in range(1, len(accepted) + 1)]
    assert got == pytest.approx(accepted, abs=1e-6)


def test_fixture_a_without_replacement_is_reproduced() -> None:
    assert float(rates.rejection_two_distinct(P, Q)) == pytest.approx(107 / 140, abs=1e-12)
    assert float(rates.match_two_distinct(P, Q)) == pytest.approx(151 / 360, abs=1e-12)


def random_pair(seed: int, vocab_size: int = 4, sharpness: float = 1.5) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(seed)
    p, q = torch.softmax(sharpness * torch.randn(2, 1, vocab_size, generator=noise, dtype=torch.float64), -1)
    return p, q


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("verifier", "draw", "k", "rate"),
    [
        (Match(), Draw.IID, 3, lambda p, q: rates.match_iid(p, q, 3)),
        (Match(), Draw.DISTINCT, 2, rates.match_two_distinct),
        (Rejection(), Draw.IID, 3, lambda p, q: rates.rejection_iid(p, q, 3)),
        (Rejection(), Draw.DISTINCT, 2, rates.rejection_two_distinct),
    ],
)
def test_the_shipped_rules_keep_what_the_formulas_say(verifier: Any, draw: Draw, k: int, rate: Any, seed: int) -> None:
    p, q = random_pair(seed)

    def recipe() -> Recipe:
        drafter = TableDrafter(context_free(q[0].tolist()))
        return Recipe(drafter=drafter, policy=Static((k,), draw), verifier=verifier, controller=Always(1, k))

    got = acceptance(leaves(TableModel(4, context_free(p[0].tolist())), recipe))
    assert float(rate(p, q)) == pytest.approx(got, abs=1e-12)


@given(st.integers(0, 2**31), st.integers(2, 7), st.sampled_from([0.3, 1.5, 5.0]), st.integers(1, 5))
@settings(max_examples=80, deadline=None)
def test_no_formula_exceeds_its_bound_and_one_draw_makes_all_equal(
    seed: int, vocab_size: int, sharpness: float, k: int
) -> None:
    p, q = random_pair(seed, vocab_size, sharpness)
    iid, distinct = float(best_iid(p, q, k)[0, k - 1]), best_distinct(p, q, max(k, 2))[0]
    for rate in IID:
        assert float(rate(p, q, k)) <= iid + 1e-9
    assert float(rates.rejection_two_distinct(p, q)) <= float(distinct[1]) + 1e-9
    assert float(rates.match_two_distinct(p, q)) <= float(distinct[1]) + 1e-9
    one = float(torch.minimum(p, q).sum())
    for rate in (*IID[1:], rates.greedy):
        assert float(rate(p, q, 1)) == pytest.approx(one, abs=1e-9)


def tournament(p: list[float], q: list[float], k: int, plays_always: bool = False) -> float:
    """Selection by enumerating every pair of draws: the share of p that the winner's distribution covers."""
    tokens, won = range(len(p)), dict(enumerate(q))
    for _ in range(k - 1):
        rank = {t: -p[t] + won[t] * q[t] for t in tokens}
        found = dict.fromkeys(tokens, 0.0)
        for first, second in product(tokens, repeat=2):
            found[min((first, second), key=lambda t: (rank[t], t))] += won[first] * q[second]
        helps = sum(map(min, p, found.values())) > sum(map(min, p, won.values()))
        won = found if helps or plays_always else won
    return sum(map(min, p, won.values()))


@given(st.integers(0, 2**31), st.integers(2, 6), st.sampled_from([0.3, 1.5, 5.0]))
@settings(max_examples=40, deadline=None)
def test_selection_keeps_what_enumerating_its_meetings_says_and_no_draw_makes_it_keep_less(
    seed: int, vocab_size: int, sharpness: float
) -> None:
    p, q = random_pair(seed, vocab_size, sharpness)
    kept = [float(rates.selection_iid(p, q, k)) for k in range(1, 9)]
    assert kept == pytest.approx([tournament(p[0].tolist(), q[0].tolist(), k) for k in range(1, 9)], abs=1e-9)
    assert all(more >= less - 1e-12 for less, more in pairwise(kept))


def test_control_meetings_that_are_always_played_keep_less_with_more_draws() -> None:
    p, q = (x[0].tolist() for x in random_pair(3, 6, 0.3))
    assert tournament(p, q, 8, plays_always=True) < tournament(p, q, 8) - 0.05


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_the_shipped_selection_keeps_what_its_formula_says_and_a_little_more(seed: int) -> None:
    p, q = random_pair(seed)

    def kept(k: int) -> float:
        drafter = TableDrafter(context_free(q[0].tolist()))
        made = Recipe(drafter=drafter, policy=Static((k,), Draw.IID), verifier=Selection(), controller=Always(1, k))
        return acceptance(leaves(TableModel(4, context_free(p[0].tolist())), lambda: made))

    for k in (2, 3):
        assert 0 <= kept(k) - float(rates.selection_iid(p, q, k)) + 1e-12 < 0.1


def test_control_a_looser_rho_would_be_seen_above_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "HALVINGS", 0)
    assert float(rates.transport_iid(P, Q, 2)) == pytest.approx(0.64, abs=1e-9)  # rho = k: exact, and worse
    p, q = P.clone(), Q.clone()
    assert 1 - (1 - float(torch.minimum(p, q).sum())) ** 2 > float(best_iid(p, q, 2)[0, 1])  # rho = 1: not exact


@pytest.mark.parametrize("k", [1, 2, 3])
def test_distributions_at_the_edges_give_numbers_and_not_nan(k: int) -> None:
    one, even = torch.tensor([[1.0, 0, 0, 0]]), torch.full((1, 4), 0.25)
    low, high = torch.tensor([[0.5, 0.5, 0, 0]]), torch.tensor([[0, 0, 0.5, 0.5]])
    for rate in (*IID, rates.greedy):
        if rate not in (
            rates.match_iid,
            rates.selection_iid,
        ):  # neither keeps everything of a draft with distribution p
            assert float(rate(even, even, k)) == pytest.approx(1, abs=1e-9)
        assert float(rate(low, high, k)) == 0
        assert float(rate(even, one, k)) == pytest.approx(0.25, abs=1e-9)
        assert float(rate(one, one, k)) == pytest.approx(1, abs=1e-9)
    for rate in (rates.match_two_distinct, rates.rejection_two_distinct):
        assert float(rate(low, high)) == 0 and float(rate(even, one)) == pytest.approx(0.25, abs=1e-9)


def test_no_draws_are_refused() -> None:
    for rate in (*IID, rates.greedy):
        with pytest.raises(OptionError, match="k cannot be 0"):
            rate(P, Q, 0)

"""The first level: formulas where there are any, and a bound that none of them exceeds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.bench.study.rules.first_level import DISTINCT_TWO, IID, bound, rate
from draftwood.bench.study.rules.paired_runs import Root
from draftwood.core.legal_draws import Draw

P, Q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)


def root(draws: int, p: tuple[float, ...] = P, q: tuple[float, ...] = Q, given: tuple[int, ...] = ()) -> Root:
    return Root(torch.tensor(p), torch.tensor(q), draws, given)


@pytest.mark.parametrize(
    ("rule", "draw", "draws", "kept"),
    [
        ("Rejection", Draw.IID, 1, 0.6),
        ("Rejection", Draw.DISTINCT, 1, 0.6),
        ("Rejection", Draw.DISTINCT, 2, 107 / 140),
        ("Match", Draw.IID, 2, 0.35),
        ("Match", Draw.IID, 1, 0.2),
    ],
)
def test_rules_keep_what_their_formulas_say(rule: str, draw: Draw, draws: int, kept: float):
    assert rate(rule, root(draws), draw) == pytest.approx(kept, abs=1e-6)


@pytest.mark.parametrize(
    ("rule", "draw", "draws"),
    [("Traversal", Draw.IID, 1), ("Rejection", Draw.DISTINCT, 3), ("Selection:lp", Draw.IID, 2)],
)
def test_where_no_formula_is_known_none_is_made_up(rule: str, draw: Draw, draws: int):
    assert rate(rule, root(draws), draw) is None


def test_of_best_guesses_and_one_draw_rejection_keeps_all_that_can_be_kept():
    one = root(1, q=(1 / 6, 2 / 6, 3 / 6, 0.0), given=(3,))
    assert bound(one, Draw.DISTINCT) == pytest.approx(23 / 30, abs=1e-6)
    assert rate("Rejection", one, Draw.DISTINCT) == pytest.approx(23 / 30, abs=1e-6)
    assert rate("Match", one, Draw.DISTINCT) == pytest.approx(0.1 + (0.4 + 2 * 0.3 + 3 * 0.2) / 6, abs=1e-6)


def test_given_tokens_are_kept_as_often_as_the_target_wants_them():
    given = root(0, q=(0.0,) * 4, given=(0, 2))
    assert bound(given, Draw.GIVEN) == pytest.approx(0.6) and rate("Match", given, Draw.GIVEN) == pytest.approx(0.6)


def test_more_draws_only_loosen_the_bound():
    assert bound(root(1), Draw.DISTINCT) < bound(root(1), Draw.DISTINCT, most=3)
    assert bound(root(4), Draw.DISTINCT) == pytest.approx(1.0)
    assert bound(root(2), Draw.IID) < bound(root(2), Draw.DISTINCT)


distributions = st.lists(st.floats(0.01, 1), min_size=5, max_size=5).map(lambda x: tuple(v / sum(x) for v in x))


@settings(max_examples=40, deadline=None)
@given(distributions, distributions, st.integers(1, 4))
def test_no_formula_exceeds_the_bound(p: tuple[float, ...], q: tuple[float, ...], draws: int):
    for draw, rules in ((Draw.IID, IID), (Draw.DISTINCT, DISTINCT_TWO)):
        for rule in rules:
            kept = rate(rule, root(draws, p, q), draw)
            assert kept is None or kept <= bound(root(draws, p, q), draw) + 1e-6


def test_draws_judged_as_if_each_were_alone_would_exceed_it(monkeypatch: pytest.MonkeyPatch):
    alone = IID["Rejection"]
    monkeypatch.setitem(IID, "Transport", lambda p, q, k: 1 - (1 - alone(p, q, 1)) ** k)
    kept = rate("Transport", root(2), Draw.IID)
    assert kept is not None and kept == pytest.approx(0.84) and kept > bound(root(2), Draw.IID) + 0.04  # 0.79

"""Selection: the winner of a tournament has a known distribution, and rejection under it gives the target's."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.core.legal_draws import Draw
from draftwood.errors import CompositionError, OptionError
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.exact import acceptance, distance, first_token, joint_error, probs_of
from draftwood.testing.parts.table_model import TableModel, context_free
from draftwood.trees.static import Static
from draftwood.verifiers import selection
from draftwood.verifiers.selection import Contest, Selection, play
from token_rules import P, Q, distributions, one_round, optimum, recipe_of

RANK, LP = Selection(), Selection("lp")


def iid(*widths: int) -> Static:
    return Static(widths, Draw.IID)


def exact(*rows: tuple[float, ...]) -> list[torch.Tensor]:
    return [torch.tensor([row], dtype=torch.float64) for row in rows]


def test_distribution_of_the_winner_is_one_sort_and_two_sums() -> None:
    p, q = exact(P, Q)
    contest = play(p, q, q, 0, torch.ones(1, dtype=torch.bool))
    assert contest.rank.tolist() == [[0, 1, 2, 3]]
    assert contest.won[0].tolist() == pytest.approx([0.19, 0.32, 0.33, 0.16], abs=1e-12)


@given(st.integers(2, 5).flatmap(lambda v: st.tuples(distributions(v), distributions(v))))
@settings(max_examples=6, deadline=None)
def test_two_draws_reach_the_optimum_where_the_programme_holds_all_tokens(
    pair: tuple[list[float], list[float]],
) -> None:
    p, q = pair
    found = [one_round(rule, iid(2), p, q) for rule in (RANK, LP)]
    assert max(joint_error(each, context_free(p), len(p), 1) for each in found) < 1e-12
    single = sum(min(a, b) for a, b in zip(p, q, strict=True))
    rank, programme = map(acceptance, found)
    assert single - 1e-9 <= rank <= programme + 1e-9
    assert programme == pytest.approx(optimum(p, q, 2), abs=1e-7)


@pytest.mark.slow
@given(st.tuples(distributions(3), distributions(3)), st.sampled_from([2, 3]))
@settings(max_examples=8, deadline=None)
def test_three_draws_and_a_small_programme_are_exact_below_the_optimum(pair: Any, size: int) -> None:
    p, q = pair
    for rule in (RANK, Selection("lp", size)):
        found = one_round(rule, iid(3), p, q)
        assert joint_error(found, context_free(p), 3, 1) < 1e-12
        assert acceptance(found) <= optimum(p, q, 3) + 1e-9


def test_the_programme_is_better_where_the_ranking_errs() -> None:
    p, q = (0.5, 0.3, 0.2), (0.3, 0.4, 0.3)
    rank, programme = (acceptance(one_round(rule, iid(2), p, q)) for rule in (RANK, LP))
    assert rank < programme - 0.01 and programme == pytest.approx(optimum(p, q, 2), abs=1e-9)


def test_a_solver_that_fails_leaves_the_ranking_with_its_own_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood.verifiers.selection_lp.solved", lambda *_: None)
    found = probs_of(one_round(LP, iid(2)))
    monkeypatch.undo()
    assert found == pytest.approx(probs_of(one_round(RANK, iid(2))), abs=1e-12)


def test_options_are_checked_and_a_missing_solver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="solver"):
        Selection("best")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="size"):
        Selection("lp", 1)
    monkeypatch.setattr(selection, "find_spec", lambda name: None)
    Selection()
    with pytest.raises(OptionError, match=r"(?s)scipy.*hint: pip install scipy"):
        Selection("lp")


def test_draws_without_replacement_are_refused() -> None:
    with pytest.raises(CompositionError, match="Selection is defined for iid draws"):
        recipe_of(RANK, Static((2,)), context_free(Q))().check(CpuRunner(TableModel(4, context_free(P))))


# Planted mistakes.


def spoiled(change: Callable[[Contest, torch.Tensor, torch.Tensor], Contest]) -> Any:
    """`play` with its result changed, given the distributions of both players."""

    def wrong(p: Any, r: Any, q: Any, size: int, where: Any) -> Contest:
        return change(play(p, r, q, size, where), r, q)

    return wrong


def test_control_a_winner_judged_by_the_distribution_of_one_draw_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "play", spoiled(lambda contest, r, q: replace(contest, won=r)))
    # The better ranked of two tokens comes as (.19, .32, .33, .16) and is kept like one drawn from q.
    assert distance(first_token(one_round(RANK, iid(2)), 4), P) > 0.05


def test_control_the_distribution_of_other_chances_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = (0.5, 0.3, 0.2), (0.3, 0.4, 0.3)
    assert distance(first_token(one_round(LP, iid(2), p, q), 3), p) < 1e-12

    def of_the_ranking(contest: Contest, r: torch.Tensor, q: torch.Tensor) -> Contest:
        probs = torch.tensor([p], dtype=r.dtype).expand_as(r)
        return replace(contest, won=play(probs, r, q, 0, torch.ones(len(r)).bool()).won)

    monkeypatch.setattr(selection, "play", spoiled(of_the_ranking))
    assert distance(first_token(one_round(LP, iid(2), p, q), 3), p) > 0.01


@pytest.mark.one_in(3)
@pytest.mark.parametrize("ranked", [1, 2, 3])
def test_tokens_that_rank_alike_behind_the_best_leave_the_distribution_as_it_is(
    ranked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_SORTED", ranked)
    for k in (2, 3):
        assert joint_error(one_round(Selection(), Static((k,), Draw.IID)), context_free(P), 4, 1) < 1e-12

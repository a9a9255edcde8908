"""Transport keeps independent draws as a scaled-down rejection would, and what comes out is the target's."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.core.limit import Limit
from draftwood.core.proposal import Draw, Proposal
from draftwood.core.round import Round
from draftwood.errors import CompositionError, OptionError
from draftwood.testing.contracts import check_verifier
from draftwood.testing.drafts import TableDrafter
from draftwood.testing.exact import acceptance, distance, expected_accepted, first_token, joint_error, law_of, leaves
from draftwood.testing.tables import TableModel, context_free, near, random_law
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static
from draftwood.verifiers import transport
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from draftwood.verifiers.transport import Transport, best_rho
from token_rules import P, Q, laws, one_round, optimum, options_error, recipe_of, texts, texts_alone


def iid(*widths: int) -> Static:
    return Static(widths, Draw.IID)


@pytest.mark.parametrize(
    ("k", "accepted"), [(1, 0.6), (2, 0.75), (3, 0.793950), pytest.param(4, 0.831438, marks=pytest.mark.slow)]
)
def test_fixture_a_is_reproduced_and_the_law_is_the_targets(k: int, accepted: float) -> None:
    found = one_round(Transport(), iid(k))
    assert acceptance(found) == pytest.approx(accepted, abs=1e-6)
    assert joint_error(found, context_free(P), 4, 1) < 1e-12


def test_the_best_rho_is_found_from_above() -> None:
    p, q = (torch.tensor([law] * 4, dtype=torch.float64) for law in (P, Q))
    rho = best_rho(p, q, torch.tensor([1, 2, 3, 4]))
    assert rho.tolist() == pytest.approx([1, 1.5, 1.939500, 2.314383], abs=1e-6)
    assert float(rho[1]) >= 1.5
    assert best_rho(p.float(), q.float(), torch.tensor([1, 2, 3, 4])).tolist() == pytest.approx(rho.tolist(), abs=1e-5)


def test_a_greater_rho_is_exact_and_keeps_less() -> None:
    found = one_round(Transport(rho=2), iid(2))
    assert acceptance(found) == pytest.approx(0.688333, abs=1e-6)
    assert joint_error(found, context_free(P), 4, 1) < 1e-12


def test_a_rho_that_is_too_small_is_not_used() -> None:
    assert law_of(one_round(Transport(rho=1), iid(2))) == law_of(one_round(Transport(), iid(2)))
    for wrong in (0.5, float("nan"), float("inf"), "worst", None):
        with pytest.raises(OptionError, match="rho"):
            Transport(rho=wrong)  # type: ignore[arg-type]


def test_one_draw_is_judged_as_rejection_judges_it() -> None:
    for seed in range(5):
        p = random_law(4, seed)
        q = near(p, 4, seed + 50, 0.7)
        one, two = (
            law_of(leaves(TableModel(4, p), recipe_of(rule, iid(1, 1), q, 2))) for rule in (Transport(), Rejection())
        )
        assert one == pytest.approx(two, abs=1e-12)


@pytest.mark.parametrize("policy", [Paths(2), iid(2, 1)], ids=lambda x: type(x).__name__)
def test_two_levels_have_the_targets_joint_law(policy: Any) -> None:
    law = random_law(3, 7)
    q = near(law, 3, 8, 0.5)
    found = leaves(TableModel(3, law), recipe_of(Transport(), policy, q, 2))
    assert joint_error(found, law, 3, 3) < 1e-12
    alone = leaves(TableModel(3, law), recipe_of(Transport(), iid(1, 1), q, 2))
    assert expected_accepted(found) > expected_accepted(alone)


def test_edges() -> None:
    assert acceptance(one_round(Transport(), iid(3), P, P)) > 1 - 1e-12
    apart = one_round(Transport(), iid(3), (0.5, 0.5, 0, 0), (0, 0, 0.5, 0.5))
    assert acceptance(apart) == 0 and first_token(apart, 4) == pytest.approx([0.5, 0.5, 0, 0], abs=1e-12)
    for p, q in (((0, 1, 0), (0.2, 0.5, 0.3)), ((0.2, 0.5, 0.3), (0, 1, 0)), ((0.3, 0.3, 0.4), (0.5, 0.5, 0))):
        assert joint_error(one_round(Transport(), iid(3), p, q), context_free(p), 3, 1) < 1e-12


@pytest.mark.slow
def test_contract_of_verifiers_is_kept() -> None:
    check_verifier(Transport(), models=1)


@given(st.integers(2, 5).flatmap(lambda v: st.tuples(laws(v), laws(v))), st.integers(2, 3))
@settings(max_examples=15, deadline=None)
def test_any_two_laws_come_out_exactly_and_near_the_optimum(pair: tuple[list[float], list[float]], k: int) -> None:
    p, q = pair
    k = 2 if len(p) > 3 else k
    found = one_round(Transport(), iid(k), p, q)
    assert joint_error(found, context_free(p), len(p), 1) < 1e-12
    assert (1 - 1 / math.e) * optimum(p, q, k) - 1e-9 <= acceptance(found) <= optimum(p, q, k) + 1e-9


def test_rows_are_judged_alike_alone_and_beside_rows_of_other_sizes() -> None:
    law = random_law(6, 3)
    made = recipe_of(Transport(), Paths(3), near(law, 6, 4, 0.4), 3, 9)
    asked = [([1, 2], 12, 1.0), ([3], 1, 1.0), ([4], 3, 0.7), ([5, 0, 1], 9, 0.0), ([2], 20, 1.3)]
    assert texts(TableModel(6, law), made, asked) == texts_alone(TableModel(6, law), made, asked)


def test_greedy_text_is_that_of_plain_decoding() -> None:
    law = random_law(6, 3)
    asked = [([1], 15, 0.0), ([2, 3], 15, 0.0)]
    q = near(law, 6, 4, 0.4)
    plain = texts(TableModel(6, law), recipe_of(Match(), Paths(1), q, 0, 0), asked)
    for policy in (Paths(3), iid(3, 2)):
        assert texts(TableModel(6, law), recipe_of(Transport(), policy, q, 2), asked) == plain


@pytest.mark.parametrize(
    "options", [{"top_p": 0.6}, {"repetition_penalty": 1.8, "top_k": 2}], ids=lambda o: "+".join(o)
)
def test_options_are_exact(options: dict[str, Any]) -> None:
    assert options_error(Transport(), iid(2), options) < 1e-12


def test_draws_without_replacement_are_refused() -> None:
    with pytest.raises(CompositionError, match="Transport is defined for iid draws"):
        recipe_of(Transport(), Static((2,)), context_free(Q))().check(TableModel(4, context_free(P)))


# Planted mistakes.


def test_control_rho_below_the_best_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "best_rho", lambda p, q, count: torch.ones(len(p), dtype=p.dtype))
    law = first_token(one_round(Transport(), iid(2)), 4)
    assert law == pytest.approx([0.2886, 0.2914, 0.28, 0.14], abs=1e-4)
    assert distance(law, P) == pytest.approx(0.12, abs=1e-4)


def test_control_equal_draws_tried_together_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "next_draw", lambda left, *_: (left > 0).int().argmax(1))
    assert distance(first_token(one_round(Transport(), iid(3)), 4), P) == pytest.approx(0.009, abs=1e-3)


def test_control_one_coin_for_all_draws_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    key = Round.key

    def same(self: Round, purpose: str, at: torch.Tensor, turn: int = 0) -> torch.Tensor:
        alike = purpose == "accept"
        return key(self, purpose, torch.zeros_like(at) if alike else at, 0 if alike else turn)

    monkeypatch.setattr(Round, "key", same)
    assert distance(first_token(one_round(Transport(), iid(2)), 4), P) > 0.01


@dataclass(frozen=True)
class Counted(TableDrafter):
    """Equal draws merged and not counted."""

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        made = TableDrafter.propose(self, state, rnd, base, limit, policy)
        made.tree.copies.clamp_(max=1)
        return made


def test_control_draws_that_are_merged_and_not_counted_fail() -> None:
    def made() -> Any:
        recipe = recipe_of(Transport(), iid(2), context_free(Q))()
        return type(recipe)(
            drafter=Counted(context_free(Q)),
            policy=recipe.policy,
            verifier=recipe.verifier,
            controller=recipe.controller,
        )

    assert distance(first_token(leaves(TableModel(4, context_free(P)), made), 4), P) > 0.01

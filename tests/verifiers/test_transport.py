"""Transport keeps independent draws as a scaled-down rejection would, and what comes out is the target's."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.errors import CompositionError, OptionError
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.exact import acceptance, distance, first_token, joint_error, leaves, probs_of
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, context_free
from draftwood.trees.static import Static
from draftwood.verifiers import transport
from draftwood.verifiers.transport import Transport, best_rho
from token_rules import P, Q, distributions, one_round, optimum, recipe_of


def iid(*widths: int) -> Static:
    return Static(widths, Draw.IID)


def test_the_best_rho_is_found_from_above() -> None:
    p, q = (torch.tensor([probs] * 4, dtype=torch.float64) for probs in (P, Q))
    rho = best_rho(p, q, torch.tensor([1, 2, 3, 4]))
    assert rho.tolist() == pytest.approx([1, 1.5, 1.939500, 2.314383], abs=1e-6)
    assert float(rho[1]) >= 1.5
    assert best_rho(p.float(), q.float(), torch.tensor([1, 2, 3, 4])).tolist() == pytest.approx(rho.tolist(), abs=1e-5)


def test_both_libraries_search_alike() -> None:
    noise = torch.Generator().manual_seed(4)
    p, q = torch.softmax(2 * torch.randn(2, 40, 30, generator=noise, dtype=torch.float64), -1)
    q[:3], p[3, 1:], p[3, 0] = p[:3], 0, 1  # equal ones, a sure one
    count = torch.randint(0, 9, (40,), generator=noise)
    with np.errstate(divide="ignore", invalid="ignore"):
        one = torch.from_numpy(transport._search(np, p.numpy(), q.numpy(), count.numpy()))
    torch.testing.assert_close(transport._search(torch, p, q, count), one, rtol=0, atol=1e-6)  # each within its hair


def test_a_rho_that_is_too_small_is_not_used() -> None:
    assert probs_of(one_round(Transport(rho=1), iid(2))) == probs_of(one_round(Transport(), iid(2)))
    for wrong in (0.5, float("nan"), float("inf"), "worst", None):
        with pytest.raises(OptionError, match="rho"):
            Transport(rho=wrong)  # type: ignore[arg-type]


@pytest.mark.slow
@given(st.integers(2, 5).flatmap(lambda v: st.tuples(distributions(v), distributions(v))), st.integers(2, 3))
@settings(max_examples=8, deadline=None)
def test_any_two_distributions_come_out_exactly_and_near_the_optimum(
    pair: tuple[list[float], list[float]], k: int
) -> None:
    p, q = pair
    k = 2 if len(p) > 3 else k
    found = one_round(Transport(), iid(k), p, q)
    assert joint_error(found, context_free(p), len(p), 1) < 1e-12
    assert (1 - 1 / math.e) * optimum(p, q, k) - 1e-9 <= acceptance(found) <= optimum(p, q, k) + 1e-9


def test_draws_without_replacement_are_refused() -> None:
    with pytest.raises(CompositionError, match="Transport is defined for iid draws"):
        recipe_of(Transport(), Static((2,)), context_free(Q))().check(CpuRunner(TableModel(4, context_free(P))))


# Planted mistakes.


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

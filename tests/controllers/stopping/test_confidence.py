"""Drafts that end where the drafter grows unsure: thresholds by hand, and rules that stay exact whatever they are."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.controllers.stopping.confidence import AdaptiveConfidence, Confident, Threshold
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.tree import TokenTree
from draftwood.errors import OptionError
from draftwood.testing.contracts import toy_round
from draftwood.testing.exact import distance, first_token, joint_error
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import context_free
from draftwood.trees.chain import Chain
from draftwood.verifiers.rejection import Rejection
from look_ahead import outcomes, pair

P, Q = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5)


def test_the_threshold_follows_the_hand_calculation() -> None:
    """Shares 1/4, then (1/4 + 1) / 2 = 0.625, then 0.8125, then 0.90625: up three times, then down."""
    rule, own = AdaptiveConfidence(depth=8), Threshold(0.8)
    for drafted, accepted, share, value in (
        (4, 1, 0.25, 0.801),
        (4, 4, 0.625, 0.802),
        (4, 4, 0.8125, 0.803),
        (4, 4, 0.90625, 0.802),
    ):
        rule.learn(own, drafted, accepted)
        assert own.share == pytest.approx(share) and own.value == pytest.approx(value)


def test_a_draft_of_the_full_depth_does_not_lower_it_and_one_that_fails_raises_it() -> None:
    rule, own = AdaptiveConfidence(depth=4), Threshold(0.5)
    rule.learn(own, 4, 4)
    assert own.value == 0.5 and own.share == 1.0
    rule.learn(own, 4, 0)
    assert own.value == pytest.approx(0.501) and own.share == 0.5


def test_it_stays_a_probability_and_a_freed_slot_begins_again() -> None:
    rule = AdaptiveConfidence(depth=4, step=1.0, inertia=0.0)
    own = Threshold(0.8)
    rule.learn(own, 2, 0)
    assert own.value == 1.0
    state = rule.init(1)
    rule.threshold(state, 0, greedy=True).value = 0.1
    rule.free(state, [0])
    assert rule.threshold(state, 0, greedy=True).value == 0.8 and rule.threshold(state, 1, greedy=False).value == 0.5


@pytest.mark.parametrize("wrong", [{"wanted": 1.5}, {"step": -0.1}, {"greedy": float("nan")}])
def test_what_is_no_share_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        AdaptiveConfidence(depth=4, **wrong)
    with pytest.raises(OptionError, match="threshold"):
        Confident(depth=4, threshold=2.0)


@pytest.mark.parametrize("draw", [Draw.GIVEN, Draw.IID])
def test_proceed_is_shown_the_probability_of_each_token(draw: Draw) -> None:
    rnd, shown = toy_round([[1], [2]], 3, temperature=1.0), list[Tensor]()

    def proceed(tree: TokenTree, frontier: Tensor, above: Any, own: Tensor) -> Tensor:
        token = tree.tokens.gather(1, frontier.clamp_min(0))
        expected = torch.tensor(Q, dtype=own.dtype)[token] if tree.num_nodes > 1 else torch.ones_like(own)
        torch.testing.assert_close(own, expected, atol=1e-6, rtol=0)
        shown.append(own)
        return frontier >= 0

    limit = replace(Limit.of([3, 3], [3, 3]), proceed=proceed)
    drafter = TableDrafter(context_free(Q))
    drafter.propose(None, rnd, Proposal.roots(rnd.roots()), limit, Chain(draw))
    assert len(shown) == 3


@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.4, 1.0])
def test_rejection_is_exact_with_any_threshold(threshold: float) -> None:
    p, q = pair(3, 7)
    found = outcomes(Rejection(), Chain(), p, q, 3, controller=Confident(3, threshold=threshold), tokens=3)
    assert joint_error(found, p, 3, 3) < 1e-12


def test_an_adaptive_threshold_leaves_whole_requests_exact() -> None:
    p, q = pair(3, 9)
    rule = AdaptiveConfidence(2, step=1.0, inertia=0.5, sampled=0.3)
    found = outcomes(Rejection(), Chain(), p, q, 3, controller=rule, tokens=3)
    assert joint_error(found, p, 3, 3) < 1e-12


def test_the_threshold_decides_how_deep_a_draft_is() -> None:
    """A twin of the tests above: thresholds do stop drafts, and do not stop all."""
    p = context_free(P)

    def kept(threshold: float) -> float:
        rule = Confident(3, threshold=threshold)
        return sum(x.prob * x.accepted for x in outcomes(Rejection(), Chain(), p, p, 3, controller=rule))

    assert kept(0.0) == pytest.approx(3) and kept(1.0) == pytest.approx(1) and 1.1 < kept(0.4) < 2.9


def test_control_a_token_that_is_taken_back_because_it_was_unsure_biases() -> None:
    @dataclass(frozen=True)
    class Taking(TableDrafter):
        def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
            made = TableDrafter.propose(self, state, rnd, base, limit, policy)
            sure = torch.tensor(Q)[made.tree.tokens] >= 0.4
            sure[:, 0] = True
            return made.keep(sure)

    found = outcomes(Rejection(), Chain(), context_free(P), Taking(context_free(Q)), 3, 1)
    assert distance(first_token(found, 3), P) > 0.05

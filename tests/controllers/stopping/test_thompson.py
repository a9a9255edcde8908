"""Chains stopped by Thompson sampling: posteriors by hand, rules that stay exact, and coins that must not be shared."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.controllers.stopping.thompson import (
    PRIOR,
    PURPOSE,
    BetaThompson,
    CalibratedThompson,
    Posterior,
    calibrated,
    clipped_mean,
    sums,
)
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Load
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import HostVerdict, Outcome, Times, Verdict
from draftwood.errors import OptionError
from draftwood.testing.contracts import check_controller, toy_round
from draftwood.testing.exact import Free, joint_error
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import context_free
from draftwood.trees.chain import Chain
from draftwood.verifiers.rejection import Rejection
from look_ahead import outcomes, pair

P, Q = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5)
LOAD = Load(cost_model=Free(), batch_size=1, waiting=0, context=1)
RULES: list[Any] = [BetaThompson(3), CalibratedThompson(3)]


def name(x: Any) -> str:
    return type(x).__name__


def outcome(*drafts: tuple[int, int]) -> Outcome:
    """Chains, each as (drafted, accepted)."""
    paths = [list(range(kept + 1)) for _, kept in drafts]
    count, after = torch.tensor([kept for _, kept in drafts]), torch.zeros(len(drafts), dtype=torch.long)
    verdict = Verdict(after[:, None], count, after, HostVerdict(paths, [0] * len(drafts)))
    drafted = tuple(levels for levels, _ in drafts)
    return Outcome(Proposal.roots(after), verdict, after[:, None], Times(), drafted, drafted)


def own_rounds(rule: BetaThompson, state: Any, rnd: Round, *rounds: Outcome) -> list[Posterior]:
    for each in rounds:
        rule.update(state, rnd, each)
    return [rule.posterior(state, slot) for slot in rnd.host_slots]


# The Beta posterior.


def test_two_of_three_accepted_move_the_posterior_from_8_4_to_10_5() -> None:
    rule = BetaThompson(depth=5, alpha=8.0, beta=4.0, forget=1.0)
    assert own_rounds(rule, rule.init(1), toy_round([[1]], 3), outcome((3, 2))) == [Posterior(10.0, 5.0)]


@pytest.mark.parametrize(("censored", "beta"), [(True, 2.0), (False, 4.0)])
def test_only_an_uncensored_posterior_counts_what_follows_a_rejection(censored: bool, beta: float) -> None:
    rule, own = BetaThompson(depth=5, forget=1.0, censored=censored), Posterior(1.0, 1.0)
    rule.learn(own, (4, 1))
    assert own == Posterior(2.0, beta)
    rule.learn(own, (4, 4))
    assert own == Posterior(6.0, beta), "nothing was rejected"


def test_forgetting_follows_the_hand_calculation() -> None:
    """Prior (2, 1), half of the rest forgotten: (2, 1) + (3, 0), then (2 + 1.5, 1) + (1, 1), then (2 + 1.25, 1 + .5)."""
    rule, own = BetaThompson(depth=4, alpha=2.0, beta=1.0, forget=0.5), Posterior(2.0, 1.0)
    for draft, expected in (((3, 3), (5.0, 1.0)), ((4, 1), (4.5, 2.0)), ((2, 0), (3.25, 2.5))):
        rule.learn(own, draft)
        assert (own.alpha, own.beta) == pytest.approx(expected)


def test_the_posterior_mean_is_the_acceptance_of_a_bernoulli_stream() -> None:
    """A rule that counts what follows a rejection as rejected is too pessimistic."""
    noise, chance = random.Random(3), 0.7
    rules = {on: BetaThompson(depth=6, forget=1.0, censored=on) for on in (True, False)}
    own = {on: Posterior(1.0, 1.0) for on in rules}
    accepted = tried = 0
    for _ in range(5000):
        drafted = noise.randint(1, 6)
        kept = next((i for i in range(drafted) if noise.random() >= chance), drafted)
        accepted, tried = accepted + kept, tried + min(kept + 1, drafted)
        for on, rule in rules.items():
            rule.learn(own[on], (drafted, kept))
    assert own[True].mean == pytest.approx((accepted + 1) / (tried + 2), abs=1e-12)
    assert own[True].mean == pytest.approx(chance, abs=0.02) and own[False].mean < chance - 0.1


def test_a_round_without_a_draft_changes_nothing() -> None:
    rule, rnd = BetaThompson(depth=4, forget=0.5), toy_round([[1]], 3)
    state = rule.init(1)
    before = own_rounds(rule, state, rnd, outcome((4, 2)))[0]
    kept = replace(before)
    assert own_rounds(rule, state, rnd, outcome((0, 0))) == [kept]


def test_a_freed_slot_begins_again_and_a_shared_posterior_survives() -> None:
    rnd = toy_round([[1], [2]], 3)
    alone, together = BetaThompson(depth=4, forget=0.5), BetaThompson(depth=4, forget=0.5, shared=True)
    for rule, learned, freed in (
        (alone, [(4.0, 2.0), (3.0, 1.0)], [(1.0, 1.0), (3.0, 1.0)]),
        (together, [(6.0, 2.0)] * 2, [(6.0, 2.0)] * 2),  # one forgetting for the round
    ):
        state = rule.init(2)
        found = own_rounds(rule, state, rnd, outcome((4, 3), (2, 2)))
        assert [(x.alpha, x.beta) for x in found] == learned
        rule.free(state, [0])
        assert [(x.alpha, x.beta) for x in own_rounds(rule, state, rnd)] == freed
    state = together.init(2)
    own_rounds(together, state, rnd, outcome((4, 3), (2, 2)), outcome((2, 1), (0, 0)))
    assert state.shared == Posterior(1 + 0.5 * 5 + 1, 1 + 0.5 * 1 + 1)


# The calibration.


def test_the_mean_of_a_clipped_normal_is_that_of_its_integral() -> None:
    mean = torch.tensor([-0.4, 0.0, 0.3, 0.9, 1.6], dtype=torch.float64)[:, None]
    deviation = torch.tensor([0.05, 0.5, 2.0], dtype=torch.float64)
    x = torch.linspace(0, 1, 200_001, dtype=torch.float64)
    above = torch.special.ndtr((mean[..., None] - x) / deviation[:, None])  # P(normal > x)
    torch.testing.assert_close(clipped_mean(mean, deviation), torch.trapezoid(above, x), atol=1e-8, rtol=0)
    torch.testing.assert_close(clipped_mean(mean, torch.zeros(1, dtype=torch.float64)), mean.clamp(0, 1))


def test_only_tokens_up_to_the_first_rejected_one_are_judged() -> None:
    s = torch.tensor([[0.9, 0.8, 0.5], [0.9, 0.8, 0.5], [0.9, 0.8, 0.5]])
    off = ([0.1, -0.8], [0.1, 0.2, 0.5], list[float]())
    expected = [[len(each), sum(each), sum(x * x for x in each)] for each in off]
    torch.testing.assert_close(sums(s, [(3, 1), (3, 3), (0, 0)]), torch.tensor(expected).double())


def test_a_draft_that_is_too_sure_is_corrected_and_the_correction_becomes_certain() -> None:
    """Tokens of .9 of which every second is accepted: mu = -.4, so theta approaches .5."""
    one = torch.tensor(PRIOR, dtype=torch.float64)
    s, judged = torch.tensor([[0.9]], dtype=torch.float64), torch.tensor([2, -0.8, 0.01 + 0.81]).double()
    first, few, many = (float(calibrated(s, (one + k * judged)[None])) for k in (0, 5, 50_000))
    assert first == pytest.approx(float(clipped_mean(s, torch.tensor(0.5)))) and many == pytest.approx(0.5, abs=1e-4)
    assert many < few < first


def told(rule: CalibratedThompson, state: Any, rnd: Round, taken: list[int] | None = None) -> Tensor:
    """A round that drafts chains, of all sequences or of some, and accepts one token of each: the tokens that it drew."""
    limit = rule.plan(state, rnd, LOAD).at_most([rule.depth] * rnd.batch, [rule.depth] * rnd.batch)
    part, limit = (rnd, limit) if taken is None else (rnd.take(taken), limit.take(taken))
    made = TableDrafter(context_free(Q)).propose(None, part, Proposal.roots(part.roots()), limit, Chain(Draw.GIVEN))
    drafted = made.tree.num_drafted().tolist()
    deep = [drafted.pop(0) if taken is None or b in taken else 0 for b in range(rnd.batch)]
    rule.update(state, rnd, outcome(*((levels, min(levels, 1)) for levels in deep)))
    return made.tree.tokens[:, 1:]


@pytest.mark.parametrize("taken", [None, [1]])
@pytest.mark.parametrize("shared", [False, True])
def test_it_learns_from_the_probabilities_of_the_tokens_that_were_drafted(
    shared: bool, taken: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Round, "coin", lambda *a: a[4])  # the chain always goes on
    rule, rnd = CalibratedThompson(4, shared=shared, forget=0.5), toy_round([[1], [2]], 3, temperature=1.0)
    state = rule.init(2)
    tokens = [told(rule, state, rnd, taken) for _ in range(2)]
    expected = torch.zeros(2, 3, dtype=torch.float64)
    for drawn in tokens:
        own = torch.tensor(Q, dtype=torch.float64)[drawn][:, :2]  # an accepted and a rejected token
        off = torch.tensor([1.0, 0.0]) - own
        new = torch.stack([torch.ones_like(off), off, off * off], -1).sum(1)
        expected *= 0.5 if shared or taken is None else torch.tensor([[1.0], [0.5]])
        expected[[0, 1] if taken is None else taken] += new
    torch.testing.assert_close(state.moments, expected.sum(0, keepdim=True) if shared else expected, atol=1e-6, rtol=0)
    kept = state.moments.clone()
    rule.free(state, [1])
    assert torch.equal(state.moments[0], kept[0]) and bool(state.moments[-1].any()) == shared and not state.shown


# Drafts.


def test_a_huge_alpha_drafts_the_full_depth_and_a_huge_beta_one_token() -> None:
    p = context_free(P)

    def kept(**prior: Any) -> float:
        rule = BetaThompson(3, forget=1.0, **prior)
        return sum(x.prob * x.accepted for x in outcomes(Rejection(), Chain(), p, p, 3, controller=rule))

    assert kept(alpha=1e300) == pytest.approx(3, abs=1e-12) and kept(beta=1e300) == pytest.approx(1, abs=1e-12)
    assert kept() == pytest.approx(1 + 1 / 2 + 1 / 4, abs=1e-12), "a coin of 1/2 after each token"


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_a_sequence_is_stopped_at_the_same_token_alone_and_in_part_of_a_batch(rule: Any) -> None:
    rnd, drafter = toy_round([[1], [2], [0, 1], [2, 2]], 3, temperature=1.0), TableDrafter(context_free(Q))
    rule = replace(rule, depth=8)
    state = rule.init(4)
    if isinstance(rule, BetaThompson):
        state.slots[2] = Posterior(9.0, 1.0)

    def drafts(taken: list[int]) -> list[list[int]]:
        limit, part = rule.plan(state, rnd, LOAD).at_most([8] * 4, [8] * 4).take(taken), rnd.take(taken)
        tree = drafter.propose(None, part, Proposal.roots(part.roots()), limit, Chain()).tree
        return [t[on].tolist() for t, on in zip(tree.tokens, tree.live, strict=True)]

    whole = drafts([0, 1, 2, 3])
    assert len({len(each) for each in whole}) > 1
    for taken in ([0], [2], [1, 3], [0, 2, 3]):
        assert drafts(taken) == [whole[b] for b in taken]


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_planning_drafting_and_learning_read_nothing_from_a_device(rule: Any) -> None:
    state, rnd = rule.init(1), toy_round([[1]], 3, temperature=1.0)
    assert rnd.host_slots == [0] and rnd.host_lengths == [1]
    tree, own, done = Proposal.roots(rnd.roots()).tree, torch.ones(1, 1), outcome((2, 1))
    with as_if_on_a_device(), HostReads() as reads:
        for _ in range(2):
            limit, grown = rule.plan(state, rnd, LOAD), tree
            for node in range(2):
                at = torch.full_like(tree.tokens, node)
                limit.proceed(grown, at, None, own / (node + 1))
                grown = grown.add(at, at, live=at >= 0)
            rule.update(state, rnd, done)
        rule.free(state, [0])
    assert reads.total == 0, reads.by_name


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=name)
def test_it_keeps_the_contract_of_controllers(rule: Any, shared: bool) -> None:
    check_controller(replace(rule, shared=shared))


@pytest.mark.parametrize("make", [BetaThompson, CalibratedThompson])
@pytest.mark.parametrize("wrong", [{"depth": -1}, {"nodes": 1.5}, {"forget": 1.1}, {"forget": float("nan")}])
def test_options_out_of_range_are_refused(make: Callable[..., Any], wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(wrong))} cannot be .*\nhint: "):
        make(**{"depth": 4, **wrong})


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"beta": -1.0}, {"alpha": float("inf")}, {"beta": True}])
def test_a_prior_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(wrong))} cannot be .*\nhint: "):
        BetaThompson(depth=4, **wrong)


# Exactness, by enumeration of all coins.


@pytest.mark.parametrize("rule", [BetaThompson(3, alpha=2.0), CalibratedThompson(3)], ids=name)
def test_rejection_is_exact_when_a_coin_stops_the_chain(rule: Any) -> None:
    p, q = pair(3, 7)
    found = outcomes(Rejection(), Chain(), p, q, 3, controller=rule)
    assert joint_error(found, p, 3, 4) < 1e-12


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("rule", [BetaThompson(2, forget=0.5), CalibratedThompson(2, forget=0.5)], ids=name)
@pytest.mark.slow
def test_whole_requests_stay_exact_while_the_rule_learns(rule: Any, shared: bool) -> None:
    """One branch in an engine at a time where the state is shared: branches are other worlds, not other requests."""
    p, q = pair(2, 9)
    width = 1 if shared else 256
    found = outcomes(Rejection(), Chain(), p, q, 2, controller=replace(rule, shared=shared), tokens=4, width=width)
    assert joint_error(found, p, 2, 4) < 1e-12


def sharing(monkeypatch: pytest.MonkeyPatch, purpose: str, below: int) -> float:
    """The error if the stopping coin of a node is another random number of this node, or of the node below it."""
    toss = Round.coin

    def coin(self: Round, asked: str, at: Tensor, prob: Tensor, where: Tensor, turn: Any = 0) -> Tensor:
        mine = asked == PURPOSE
        return toss(self, purpose if mine else asked, at + below if mine else at, prob, where, turn)

    monkeypatch.setattr(Round, "coin", coin)
    found = outcomes(Rejection(), Chain(), context_free(P), context_free(Q), 3, controller=BetaThompson(2))
    return joint_error(found, context_free(P), 3, 3)


def test_control_a_coin_shared_with_the_acceptance_of_the_next_token_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sharing(monkeypatch, "accept", 1) > 0.01


def test_control_a_coin_shared_with_the_draw_of_the_next_token_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sharing(monkeypatch, "draft", 0) > 0.01


def test_a_coin_shared_with_the_acceptance_of_its_own_token_changes_only_the_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever follows an accepted token has the target's distribution, drafted or not. So the bias of the controls above
    comes from what is drawn and judged below the node, which is what a stopping rule must not depend on."""
    assert sharing(monkeypatch, "accept", 0) < 1e-12


def test_levels_that_do_not_continue_a_chain_teach_nothing() -> None:
    rule, rnd = CalibratedThompson(4), toy_round([[1]], 3)
    state = rule.init(1)
    stop, tree = rule.plan(state, rnd, LOAD).proceed, Proposal.roots(rnd.roots()).tree
    wide: TokenTree = tree.add(torch.zeros(1, 2).long(), torch.tensor([[1, 2]]), live=torch.ones(1, 2).bool())
    stop(tree, torch.tensor([[0]]), None, torch.ones(1, 1))
    stop(wide, torch.tensor([[1, 2]]), None, torch.full((1, 2), 0.5))
    rule.update(state, rnd, outcome((2, 1)))
    assert not state.moments.any()

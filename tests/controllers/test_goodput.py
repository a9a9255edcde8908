"""The depth follows cost, batch and acceptance; nothing is drafted where nothing pays; trials cost little."""

from itertools import pairwise
from typing import Any

import pytest

from draftwood.controllers.estimates.survival import Survival
from draftwood.controllers.goodput import EVERY, TRIALS, Goodput, expected
from draftwood.core.limit import Load
from draftwood.core.recipe import Recipe
from draftwood.core.verdict import Times
from draftwood.testing.contracts import check_controller, toy_round
from draftwood.testing.exact import Free, joint_error, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, near, random_probs
from draftwood.trees.chain import Chain
from draftwood.verifiers.rejection import Rejection
from load_costs import LineCosts, outcome_of, played


def depths(costs: LineCosts, chance: float, batch: int, rounds: int = 300) -> list[int]:
    return [rnd.depth for rnd in played(Goodput(6), costs, chance, batch, rounds)]


def test_the_controller_contract_holds() -> None:
    check_controller(Goodput(4))
    check_controller(Goodput(4, width=2))


def test_expected_tokens_are_the_sum_of_all_chances_on_the_way() -> None:
    survival = Survival(offset=0.0)
    assert expected(survival, [0, 1], 3) == pytest.approx([2, 3, 3.5, 3.75])


@pytest.mark.parametrize(("chance", "best"), [(0.05, (0,)), (0.9, (5, 6))])
def test_the_depth_is_the_best_one_of_a_known_cost(chance: float, best: tuple[int, ...]) -> None:
    chosen = depths(LineCosts(token=0.05, level=0.1), chance, 1)[100:]
    assert max(set(chosen), key=chosen.count) in best


@pytest.mark.slow
def test_the_depth_falls_as_the_batch_grows_and_rises_with_acceptance() -> None:
    costs = LineCosts(token=0.05, level=0.1)
    by_batch = [sum(depths(costs, 0.7, batch)[100:]) for batch in (1, 4, 16, 64)]
    assert by_batch == sorted(by_batch, reverse=True) and by_batch[0] > 2 * by_batch[-1]
    by_chance = [sum(depths(costs, chance, 2)[100:]) for chance in (0.1, 0.4, 0.7, 0.95)]
    assert by_chance == sorted(by_chance)


def test_equal_rounds_do_not_make_it_oscillate() -> None:
    chosen = [d for d in depths(LineCosts(token=0.05, level=0.1), 0.6, 2)[100:] if d]
    assert max(chosen) - min(chosen) <= 1
    assert sum(a != b for a, b in pairwise(chosen)) <= 200 / EVERY / 3


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("chance", "batch"), [(0.9, 1), (0.02, 8)])
def test_trials_of_the_alternative_happen_and_cost_little(chance: float, batch: int) -> None:
    rounds = played(Goodput(4), LineCosts(token=0.05, level=0.1), chance, batch, 1500)[100:]
    usual = max({r.depth for r in rounds}, key=[r.depth for r in rounds].count)
    tried = [r for r in rounds if bool(r.depth) != bool(usual)]
    assert tried, "what is not done is measured too"
    rate = sum(r.tokens for r in rounds if r.depth == usual) / sum(r.seconds for r in rounds if r.depth == usual)
    lost = sum(r.seconds - r.tokens / rate for r in tried)
    assert lost < 1.5 * TRIALS * sum(r.seconds for r in rounds)


def test_a_text_that_becomes_easy_is_found_by_a_trial() -> None:
    costs = LineCosts(token=0.05, level=0.1)
    rounds = played(Goodput(4), costs, lambda i: 0.02 if i < 400 else 0.95, 2, 1500)
    before, after = [r.depth for r in rounds[200:400]], [r.depth for r in rounds[1000:]]
    assert sum(map(bool, before)) < 40 and sum(map(bool, after)) > 400


def test_without_trials_it_never_finds_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the same text, and nothing is ever tried."""
    monkeypatch.setattr("draftwood.controllers.goodput.TRIALS", 0.0)
    monkeypatch.setattr(Survival, "rest", lambda self, slot: None)
    rounds = played(Goodput(4), LineCosts(token=0.05, level=0.1), lambda i: 0.02 if i < 400 else 0.95, 2, 1500)
    assert not any(r.depth for r in rounds[1000:])


def test_its_estimates_are_calibrated_and_it_says_how_well() -> None:
    state: Any = None

    def keep(found: Any) -> None:
        nonlocal state
        state = found

    played(Goodput(4), LineCosts(token=0.01, level=0.01), 0.6, 2, 800, keep)
    assert state.calibration_error < 0.06
    assert state.survival.chance(99, 0.5, 0) == pytest.approx(0.6, abs=0.12)
    assert Goodput(4).init(2).calibration_error is None


def test_depths_are_compared_every_few_rounds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the engine frees slots, of which there are none, after every round."""
    chosen, choose, free = 0, Goodput._choose, Goodput.update  # pyright: ignore[reportPrivateUsage]

    def counted(*given: Any) -> None:
        nonlocal chosen
        chosen += 1
        choose(*given)

    def update_and_free(self: Goodput, state: Any, *given: Any) -> None:
        free(self, state, *given)
        self.free(state, [])

    monkeypatch.setattr(Goodput, "_choose", counted)
    monkeypatch.setattr(Goodput, "update", update_and_free)
    played(Goodput(4), LineCosts(token=0.05, level=0.1), 0.6, 2, 10 * EVERY)
    assert chosen == 10


def test_an_end_lets_it_choose_anew() -> None:
    controller, load = Goodput(4), Load(LineCosts(0.01, 0.01), 2, 0, 100)
    state = controller.init(2)
    controller.plan(state, toy_round([[1]] * 2, 5), load)
    assert state.left == EVERY - 1
    controller.free(state, [1])
    assert not state.left


def test_sequences_that_get_no_drafts_count_as_plain() -> None:
    """A drafter that follows none of them: nothing is expected of a draft, so it is asked for in trials alone."""
    controller, costs, rnd = Goodput(4), LineCosts(token=0.01, level=0.01), toy_round([[1]] * 2, 5)
    load, asked = Load(costs, 2, 0, 100), 0
    state = controller.init(2)
    for _ in range(400):
        asked += bool(controller.plan(state, rnd, load).tier.depth)
        times = Times({"score": costs.pass_seconds(2)}, tokens=2)
        controller.update(state, rnd, outcome_of(rnd, (0, 0), [0, 0], times))
    assert asked < 60
    controller.free(state, [0, 1])
    assert controller.plan(state, rnd, load).tier.depth, "another text may get some"


def test_drafts_that_bring_less_than_their_positions_promise_are_given_up() -> None:
    """Only the likeliest nodes were scored, so each position that was judged seemed to be right nearly always."""
    costs = LineCosts(token=0.3, level=0.1)
    found: dict[bool, int] = {}
    for honest in (True, False):
        controller, rnd = Goodput(4), toy_round([[1]], 5)
        load, state, drafted = Load(costs, 1, 0, 100), controller.init(1), 0
        for i in range(600):
            depth = controller.plan(state, rnd, load).tier.depth
            scored = depth if depth and (honest or i % 20 == 0) else 0
            seconds = {"score": costs.pass_seconds(1 + scored), "propose": costs.draft_seconds(depth)}
            times = Times(seconds, draft_passes=depth, draft_nodes=scored, tokens=1 + scored)
            controller.update(state, rnd, outcome_of(rnd, (scored,), [scored], times))
            drafted += bool(depth) and i > 300
        found[honest] = drafted
    assert found[True] > 250 and found[False] < 100


def test_every_rule_stays_exact_with_it() -> None:
    p = random_probs(3, 3)
    q = near(p, 3, 5, 0.6)

    def recipe() -> Recipe:
        return Recipe(drafter=TableDrafter(q), policy=Chain(), verifier=Rejection(), controller=Goodput(2))

    assert joint_error(leaves(TableModel(3, p), recipe, tokens=3), p, 3, 3) < 1e-12


def test_a_depth_that_follows_the_drawn_token_is_seen_to_fail() -> None:
    """The twin: nothing is verified where the drawn token looked unlikely."""
    p = random_probs(3, 3)
    q = near(p, 3, 5, 0.6)

    class Peeking(TableDrafter):
        def propose(self, state: Any, rnd: Any, base: Any, limit: Any, policy: Any) -> Any:
            made = TableDrafter.propose(self, state, rnd, base, limit, policy)
            return made.keep(made.tree.live & ((made.tree.tokens != 0) | (made.tree.parents < 0)))

    def recipe() -> Recipe:
        return Recipe(drafter=Peeking(q), policy=Chain(), verifier=Rejection(), controller=Goodput(1))

    assert joint_error(leaves(TableModel(3, p), recipe), p, 3, 2) > 1e-3


def test_plain_rounds_ask_for_no_draft() -> None:
    state, load = Goodput(0).init(1), Load(Free(), 1, 0, 5)
    limit = Goodput(0).plan(state, toy_round([[1]], 4), load)
    assert limit.depths == (0,)


def test_a_larger_batch_is_thought_to_draft_one_sequence_after_another_until_it_was_timed() -> None:
    single = tuple(Times({"score": 0.01, "propose": 0.002 * d}, d, d, tokens=1 + d) for d in (0, 1, 2, 4))
    controller = Goodput(4, times=single)
    state = controller.init(8)
    controller.plan(state, toy_round([[1]] * 4, 5), Load(Free(), 4, 0, 10))
    assert state.own is not None
    assert state.own.draft_seconds(2, 8) == pytest.approx(4 * 0.004, rel=0.2)
    for _ in range(40):
        state.own.observe(Times({"score": 0.01, "propose": 0.005}, 2, 8, tokens=12))
    assert state.own.draft_seconds(2, 8) == pytest.approx(0.005, rel=0.2)
    assert state.drafts[1].seconds(2, 2) == pytest.approx(0.004, rel=0.2)

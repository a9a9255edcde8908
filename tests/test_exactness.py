"""Every rule emits the target's law, to rounding, and a rule with one planted mistake is seen to fail.

The engine itself is enumerated: each coin and pick is forked, and the probabilities of all outcomes are added up. Numbers
of fixtures and of planted mistakes are exact results for the named laws.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.core import check
from draftwood.core.limit import Limit
from draftwood.core.proposal import Draw, Laws, Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling import SamplingParams
from draftwood.engine import drafting
from draftwood.engine import step as engine_step
from draftwood.engine.engine import Engine
from draftwood.testing import exact
from draftwood.testing.contracts import Always, check_verifier, exact_error
from draftwood.testing.drafts import TableDrafter
from draftwood.testing.exact import acceptance, distance, expected_accepted, first_token, joint_error, leaves
from draftwood.testing.tables import TableModel, context_free, near, random_law
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers import rejection
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

P, Q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)


def recipe_of(drafter: Any, policy: Any, verifier: Any, depth: int, nodes: int) -> Callable[[], Recipe]:
    return lambda: Recipe(drafter=drafter, policy=policy, verifier=verifier, controller=Always(depth, nodes))


def one_round(verifier: Any, policy: Any, p: Sequence[float] = P, q: Sequence[float] = Q, drafter: Any = None) -> Any:
    """All outcomes of one round on a context-free pair of laws."""
    depth = len(policy.widths) if isinstance(policy, Static) else 2
    nodes = policy.num_nodes if isinstance(policy, Static) else depth
    made = recipe_of(drafter or TableDrafter(context_free(q)), policy, verifier, depth, nodes)
    return leaves(TableModel(len(p), context_free(p)), made)


@pytest.mark.parametrize(
    ("verifier", "draw", "k", "accepted"),
    [
        (Match(), Draw.IID, 1, 0.20),
        (Match(), Draw.IID, 2, 0.35),
        (Match(), Draw.DISTINCT, 2, 151 / 360),
        (Rejection(), Draw.IID, 1, 0.6),
        (Rejection(), Draw.IID, 2, 0.72),
        (Rejection(), Draw.IID, 3, 0.768),
        (Rejection(), Draw.DISTINCT, 2, 107 / 140),
        (Rejection(), Draw.DISTINCT, 3, 0.840298),
        (Rejection(), Draw.DISTINCT, 4, 1.0),
    ],
)
def test_fixture_a_is_reproduced_and_the_law_is_the_targets(verifier: Any, draw: Draw, k: int, accepted: float) -> None:
    found = one_round(verifier, Static((k,), draw))
    assert acceptance(found) == pytest.approx(accepted, abs=1e-6)
    assert joint_error(found, context_free(P), 4, 1) < 1e-12


def test_fixture_b_is_reproduced() -> None:
    found = one_round(Rejection(), Chain(), (1 / 3, 2 / 3), (2 / 3, 1 / 3))
    assert expected_accepted(found) == pytest.approx(10 / 9, abs=1e-9)
    assert joint_error(found, context_free((1 / 3, 2 / 3)), 2, 3) < 1e-12


@pytest.mark.parametrize(("widths", "kept"), [((1, 1), 1.19), ((2, 1), 1.4875), ((2, 2), 1.640625)])
def test_fixture_c_is_reproduced(widths: tuple[int, ...], kept: float) -> None:
    found = one_round(Rejection(), Static(widths), (0.3, 0.4, 0.3), (0.6, 0.3, 0.1))
    assert expected_accepted(found) == pytest.approx(kept, abs=1e-9)
    assert joint_error(found, context_free((0.3, 0.4, 0.3)), 3, 3) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("verifier", [Match(), Rejection()], ids=lambda v: type(v).__name__)
def test_every_verifier_keeps_its_contract(verifier: Any) -> None:
    check_verifier(verifier, models=1)


@pytest.mark.slow
@given(st.integers(0, 2**31), st.sampled_from([0.1, 0.5, 0.9]), st.sampled_from([Draw.IID, Draw.DISTINCT]))
@settings(max_examples=8, deadline=None)
def test_random_models_of_five_tokens_come_out_exactly(seed: int, mix: float, draw: Draw) -> None:
    law = random_law(5, seed)
    for verifier in (Match(), Rejection()):
        assert exact_error(verifier, draw, law, near(law, 5, seed + 1, mix), 5, (1, 1)) < 1e-12


@pytest.mark.parametrize(
    ("verifier", "policy"),
    [
        (Rejection(), Chain()),
        (Match(), Chain(Draw.GIVEN)),
        (Match(), Chain(Draw.IID)),
        (Rejection(), Static((2, 1))),
        (Match(), BestFirst(2)),
    ],
)
def test_whole_requests_over_several_rounds_have_the_targets_joint_law(verifier: Any, policy: Any) -> None:
    law = random_law(3, 7)
    made = recipe_of(TableDrafter(near(law, 3, 8, 0.5)), policy, verifier, 2, 4)
    found = leaves(TableModel(3, law), made, tokens=3)
    assert {len(leaf.output) for leaf in found} == {3}
    assert sum(leaf.prob for leaf in found) == pytest.approx(1, abs=1e-12)
    assert joint_error(found, law, 3, 3) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("verifier", [Match(), Rejection()], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7, "top_k": 2},
        {"top_p": 0.6},
        {"min_p": 0.4},
        {"repetition_penalty": 1.8, "presence_penalty": 0.4, "frequency_penalty": 0.3},
        {"logit_bias": {1: 1.5, 0: -0.5}, "bad_words": ((1, 1),)},
    ],
    ids=lambda o: "+".join(o),
)
def test_options_are_exact_under_speculation(verifier: Any, options: dict[str, Any]) -> None:
    law = random_law(3, 5)
    params = SamplingParams(**{"temperature": 1.0, **options})
    made = recipe_of(TableDrafter(near(law, 3, 6, 0.5)), Chain(), verifier, 2, 2)
    plain = recipe_of(TableDrafter(law), Chain(), Match(), 0, 0)
    fast = exact.law_of(leaves(TableModel(3, law), made, tokens=3, params=params))
    slow = exact.law_of(leaves(TableModel(3, law), plain, tokens=3, params=params))
    assert max(abs(fast.get(z, 0) - slow.get(z, 0)) for z in {*fast, *slow}) < 1e-12


@pytest.mark.parametrize("draw", [Draw.IID, Draw.DISTINCT])
@pytest.mark.parametrize("budget", [1, 2, 3])
def test_a_budget_smaller_than_the_tree_does_not_bias(draw: Draw, budget: int) -> None:
    made = recipe_of(TableDrafter(context_free(Q)), Static((2, 1), draw), Rejection(), 2, budget)
    found = leaves(TableModel(4, context_free(P)), made)
    assert joint_error(found, context_free(P), 4, 2) < 1e-12


def test_control_cutting_merged_draws_to_a_budget_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Static, "_draws", lambda self, levels: 0)
    made = recipe_of(TableDrafter(context_free(Q)), Static((3,), Draw.IID), Rejection(), 1, 1)
    found = leaves(TableModel(4, context_free(P)), made)
    assert distance(first_token(found, 4), P) > 0.005


def test_the_tester_drives_the_engines_own_functions() -> None:
    from draftwood.core import review
    from draftwood.engine.engine import Engine

    assert exact.Engine is Engine and engine_step.review is review.review
    assert inspect.unwrap(Engine.step).__globals__["step"] is engine_step.step


@pytest.mark.slow
def test_the_first_two_tokens_pass_a_chi_square_with_real_noise() -> None:
    from scipy.stats import chisquare

    law = random_law(4, 11)
    target = TableModel(4, law)
    recipe = recipe_of(TableDrafter(near(law, 4, 12, 0.6)), Chain(), Rejection(), 2, 2)()
    count = 2500
    engine = exact.Engine(
        target,
        target.make_cache(512),
        recipe,
        prices=exact.Free(),
        config=exact.EngineConfig(max_slots=512, max_waiting=count),
    )
    requests = [exact.Request(i, [0], SamplingParams(temperature=1.0, seed=i, max_tokens=2), 4) for i in range(count)]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
    seen = [[0] * 4 for _ in range(4)]
    for request in requests:
        seen[request.output[0]][request.output[1]] += 1
    expected = [[law((0,))[a] * law((0, a))[b] * count for b in range(4)] for a in range(4)]
    assert chisquare([x for row in seen for x in row], [x for row in expected for x in row]).pvalue > 1e-4
    assert sum(r.stats.rounds_all for r in requests) > 200 and sum(r.stats.rounds_none for r in requests) > 200


@dataclass(frozen=True)
class Failing(TableDrafter):
    """A drafter that breaks after some tokens: by a law that is none, or by raising."""

    raises: bool = False

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        def law(text: tuple[int, ...]) -> Sequence[float]:
            if len(text) > 1 and text[-1] == 2:
                if self.raises:
                    raise RuntimeError("broken")
                return [float("nan")] * 4
            return self.law(text)

        return TableDrafter(law).propose(state, rnd, base, limit, policy)


@pytest.mark.parametrize("raises", [False, True])
def test_a_drafter_that_breaks_because_of_what_it_drew_does_not_bias(raises: bool) -> None:
    made = recipe_of(Failing(context_free(Q), raises=raises), Chain(), Rejection(), 2, 2)
    found = leaves(TableModel(4, context_free(P)), made, width=1, benched=True)
    assert joint_error(found, context_free(P), 4, 2) < 1e-12


# Planted mistakes: the shipped rule with one change, and the distance the change costs.


@dataclass(frozen=True)
class Spoiled(TableDrafter):
    """A drafter whose proposal is changed behind the rule's back."""

    change: Any = None

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        return self.change(TableDrafter.propose(self, state, rnd, base, limit, policy))


def spoiled_law(change: Callable[[Proposal], Proposal], draw: Draw, k: int = 2) -> list[float]:
    found = one_round(Rejection(), Static((k,), draw), drafter=Spoiled(context_free(Q), change=change))
    return first_token(found, 4)


def test_control_the_rule_for_independent_draws_fails_on_draws_without_replacement() -> None:
    law = spoiled_law(lambda x: replace(x, draw=Draw.IID), Draw.DISTINCT)
    assert law == pytest.approx([0.3566, 0.3434, 0.2, 0.1], abs=1e-4)
    assert distance(law, P) == pytest.approx(0.0434, abs=1e-4)


def test_control_the_rule_without_replacement_fails_on_independent_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="copies is absurd"):
        spoiled_law(lambda x: replace(x, draw=Draw.DISTINCT), Draw.IID)
    monkeypatch.setitem(check._COPIES, Draw.DISTINCT, 2)  # the engine would not even let the rule see it
    law = spoiled_law(lambda x: replace(x, draw=Draw.DISTINCT), Draw.IID)
    assert distance(law, P) == pytest.approx(0.0375, abs=1e-4)


def test_control_siblings_visited_in_reverse_order_fail() -> None:
    def reverse(x: Proposal) -> Proposal:
        return replace(x, tree=replace(x.tree, tokens=x.tree.tokens[:, [0, 2, 1]]))

    assert distance(spoiled_law(reverse, Draw.DISTINCT), P) == pytest.approx(0.0250, abs=1e-4)


def test_control_keeping_only_the_more_confident_of_two_draws_fails() -> None:
    def confident(x: Proposal) -> Proposal:
        q = torch.tensor(Q)
        best = q[x.tree.tokens[:, 1:]].argmax(1)
        return x.keep(torch.stack([torch.ones_like(best).bool(), best == 0, best == 1], dim=1))

    assert distance(spoiled_law(confident, Draw.DISTINCT), P) == pytest.approx(0.1409, abs=1e-4)


@pytest.mark.parametrize(("renormalised", "cost"), [(False, 0.50), (True, 0.20)])
def test_control_the_two_best_tokens_treated_as_draws_fail(renormalised: bool, cost: float) -> None:
    def pretend(x: Proposal) -> Proposal:
        tree = replace(x.tree, tokens=torch.tensor([0, 3, 2]).expand_as(x.tree.tokens))
        q = torch.tensor(Q, dtype=torch.float64).expand(tree.batch, -1)
        if renormalised:
            q = torch.tensor([0, 0, 3 / 7, 4 / 7], dtype=torch.float64).expand(tree.batch, -1)
        rows = torch.full_like(tree.tokens, -1)
        rows[:, 0] = torch.arange(tree.batch)
        return replace(x, tree=tree, q=Laws(q), q_row=rows)

    assert distance(spoiled_law(pretend, Draw.DISTINCT), P) == pytest.approx(cost, abs=1e-4)


def test_control_equal_draws_tried_together_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = first_token(one_round(Rejection(), Static((3,), Draw.IID)), 4)
    assert distance(whole, P) < 1e-12

    def in_groups(left: torch.Tensor, *_: Any) -> torch.Tensor:
        return (left > 0).int().argmax(1)

    monkeypatch.setattr(rejection, "next_draw", in_groups)
    assert distance(first_token(one_round(Rejection(), Static((3,), Draw.IID)), 4), P) == pytest.approx(0.019, abs=1e-3)


def test_control_one_coin_for_all_siblings_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    key = Round.key

    def same(self: Round, purpose: str, at: torch.Tensor, turn: int = 0) -> torch.Tensor:
        return key(
            self, purpose, torch.zeros_like(at) if purpose == "accept" else at, 0 if purpose == "accept" else turn
        )

    monkeypatch.setattr(Round, "key", same)
    assert distance(first_token(one_round(Rejection(), Static((2,), Draw.DISTINCT)), 4), P) > 0.01


def test_control_verifying_only_the_tokens_one_likes_fails() -> None:
    p, q = (0.5, 0.3, 0.2), (0.2, 0.5, 0.3)

    def liked(x: Proposal) -> Proposal:
        return x.keep(torch.cat([x.tree.live[:, :1], x.tree.tokens[:, 1:] == 1], dim=1))

    drafter = Spoiled(context_free(q), change=liked)
    law = first_token(one_round(Rejection(), Static((1,)), p, q, drafter), 3)
    assert law == pytest.approx([0.45, 0.45, 0.10], abs=1e-9)


def test_control_dropping_a_draft_for_what_came_after_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    real = drafting._selected

    def drop_the_row(e: Engine, x: Proposal, limit: Limit) -> Proposal:
        return real(e, x.keep(torch.zeros_like(x.tree.live)) if x.fault else x, limit)

    monkeypatch.setattr(drafting, "_selected", drop_the_row)
    made = recipe_of(Failing(context_free(Q), raises=True), Chain(), Rejection(), 2, 2)
    found = leaves(TableModel(4, context_free(P)), made, width=1, benched=True)
    assert joint_error(found, context_free(P), 4, 1) > 0.005


def test_match_is_immune_to_all_of_it() -> None:
    def liked(x: Proposal) -> Proposal:
        return x.keep(torch.cat([x.tree.live[:, :1], x.tree.tokens[:, 1:] == 1], dim=1))

    found = one_round(Match(), Static((2,)), drafter=Spoiled(context_free(Q), change=liked))
    assert distance(first_token(found, 4), P) < 1e-12

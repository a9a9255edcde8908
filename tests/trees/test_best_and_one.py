"""The best tokens are given, one is drawn from what they leave, and the rule of one draw keeps most of that."""

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.proposal_checks import faults
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.errors import OptionError
from draftwood.testing.contracts import check_drafter, check_policy, toy_round
from draftwood.testing.exact import acceptance, distance, expected_accepted, first_token, joint_error, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, context_free, near, random_probs
from draftwood.trees import best_and_one
from draftwood.trees.best_and_one import BestAndOne
from draftwood.trees.chain import Chain
from draftwood.trees.grow import grow
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from token_rules import P, Q, distributions, one_round, recipe_of, texts, texts_alone


@pytest.mark.parametrize("widths", [(3, 2, 1), (2, 2), (1, 1), (9, 2)])
def test_the_contract_of_policies_holds(widths: tuple[int, ...]) -> None:
    check_policy(BestAndOne(widths))
    check_drafter(TableDrafter(random_probs(6, 1)), BestAndOne(widths), 6)


def propose(policy: Any, q: Any, vocab_size: int, temperature: float = 1.0) -> Proposal:
    rnd = toy_round([[1], [2]], vocab_size, temperature=temperature)
    limit = Limit.of([len(policy.widths)] * 2, [100] * 2)
    made = TableDrafter(q).propose(None, rnd, Proposal.roots(rnd.roots()), limit, policy)
    assert not faults(made, rnd, vocab_size)
    return made


def test_the_stored_distribution_is_what_the_given_tokens_leave() -> None:
    made = propose(BestAndOne((2,)), context_free(Q), 4)
    assert made.draw is Draw.DISTINCT and made.q is not None
    assert made.tree.tokens[:, 1].tolist() == [3, 3] and made.tree.copies.tolist() == [[0, 0, 1]] * 2
    assert 3 not in made.tree.tokens[:, 2].tolist()
    probs = made.q.dense(made.q_indices()[:, 0], 4)[0].tolist()
    assert probs == pytest.approx([1 / 6, 1 / 3, 1 / 2, 0])


def test_levels_multiply_and_shapes_are_named() -> None:
    policy = BestAndOne((3, 2, 1))
    depth = propose(policy, random_probs(8, 1), 8).tree.depths()
    assert [int((depth[0] == d).sum()) for d in range(4)] == [1, 3, 6, 6] and policy.num_nodes == 15
    assert policy.shape is Shape.TREE and BestAndOne((1, 1)).shape is Shape.CHAIN
    with pytest.raises(OptionError, match="width"):
        BestAndOne((2, 0))


def test_where_nothing_is_left_nothing_is_drawn() -> None:
    for probs in ((0.5, 0.0, 0.5, 0.0), (0.0, 0.0, 0.0, 1.0)):
        tree = propose(BestAndOne((3,)), context_free(probs), 4).tree
        given = [i for i, x in enumerate(probs) if x]
        assert sorted(tree.tokens[0][tree.live[0]].tolist()[1:]) == given and not tree.copies.any()
        assert joint_error(one_round(Rejection(), BestAndOne((3,)), P, probs), context_free(P), 4, 1) < 1e-12


def test_a_greedy_request_gets_the_best_tokens_and_no_draw() -> None:
    probs = random_probs(6, 1)
    tree = propose(BestAndOne((2, 2)), probs, 6, temperature=0.0).tree
    assert tree.num_drafted().tolist() == [6, 6] and not tree.copies.any()
    assert tree.tokens[0, 1:3].tolist() == torch.tensor(probs((1,))).topk(2).indices.tolist()


def test_among_equals_no_token_is_both_given_and_drawn() -> None:
    even = context_free((0.2,) * 5)
    for k in (2, 3, 4, 5):
        assert (
            joint_error(
                one_round(Rejection(), BestAndOne((k,)), (0.4, 0.3, 0.1, 0.1, 0.1), even(())),
                context_free((0.4, 0.3, 0.1, 0.1, 0.1)),
                5,
                1,
            )
            < 1e-12
        )


@pytest.mark.parametrize("each", [False, True], ids=["one list", "a list per row"])
def test_columns_are_mapped_to_their_tokens(each: bool) -> None:
    rnd, ids = toy_round([[1]], 9), torch.tensor([8, 3, 5])

    def step(tree: Any, frontier: torch.Tensor) -> tuple[DraftProbs, None]:
        probs = torch.tensor([[0.2, 0.5, 0.3]]).expand(frontier.numel(), -1)
        return DraftProbs(probs, ids.expand_as(probs) if each else ids), None

    made = grow(Proposal.roots(rnd.roots()), Limit.of([2], [9]), BestAndOne((3, 2)), rnd, step)
    assert made.tree.tokens[0, 1:4].tolist() == [3, 5, 8] and not faults(made, rnd, 9)


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 6])
def test_two_levels_have_the_targets_joint_distribution_within_any_budget(budget: int) -> None:
    probs = random_probs(3, 7)
    found = leaves(TableModel(3, probs), recipe_of(Rejection(), BestAndOne((2, 2)), near(probs, 3, 8, 0.5), 2, budget))
    assert joint_error(found, probs, 3, 3) < 1e-12
    assert max(leaf.accepted for leaf in found) == (1 if budget < 3 else 2)


@given(st.integers(2, 5).flatmap(lambda v: st.tuples(distributions(v), distributions(v))), st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_any_two_distributions_come_out_exactly_with_the_best_acceptance(
    pair: tuple[list[float], list[float]], k: int
) -> None:
    p, q = pair
    found = one_round(Rejection(), BestAndOne((k,)), p, q)
    assert joint_error(found, context_free(p), len(p), 1) < 1e-12
    made = propose(BestAndOne((k,)), context_free(q), len(q))
    tree = made.tree
    given = set(tree.tokens[0][tree.live[0] & (tree.copies[0] == 0)].tolist()[1:])
    left = [0.0 if i in given else x for i, x in enumerate(q)]
    # The best of any rule: 1 + min over sets H of p(H) less the probability that the whole draft lies in H.
    best = 1.0
    for inside in product((False, True), repeat=len(p)):
        held = [i for i, yes in enumerate(inside) if yes]
        within = (sum(left[i] for i in held) / sum(left) if any(left) else 1.0) if given <= {*held} else 0.0
        best = min(best, 1 + sum(p[i] for i in held) - within)
    assert acceptance(found) == pytest.approx(best, abs=1e-9)


def test_it_keeps_more_than_two_draws_would() -> None:
    probs = random_probs(4, 5)
    q = near(probs, 4, 6, 0.5)
    ours, theirs = (
        expected_accepted(leaves(TableModel(4, probs), recipe_of(Rejection(), policy, q)))
        for policy in (BestAndOne((2,)), Static((2,), Draw.IID))
    )
    assert ours > theirs


def test_rows_are_drafted_alike_alone_and_in_a_batch_and_greedy_text_is_plain() -> None:
    probs = random_probs(6, 3)
    q = near(probs, 6, 4, 0.4)
    made = recipe_of(Rejection(), BestAndOne((3, 2, 2)), q, 3, 12)
    asked = [([1, 2], 12, 1.0), ([3], 1, 1.0), ([4], 3, 0.7), ([5, 0, 1], 9, 0.0), ([2], 20, 1.3)]
    assert texts(TableModel(6, probs), made, asked) == texts_alone(TableModel(6, probs), made, asked)
    cold = [(prompt, 12, 0.0) for prompt, _, _ in asked]
    plain = texts(TableModel(6, probs), recipe_of(Match(), Chain(), q, 0, 0), cold)
    assert texts(TableModel(6, probs), made, cold) == plain


# Planted mistakes.


def test_control_a_draw_stored_under_the_whole_distribution_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    real = best_and_one.spread

    def whole_probs(growth: Any, q: DraftProbs, k: int, draw: Draw, allowed: Any, rnd: Any) -> Any:
        grown = real(growth, q, k, draw, allowed, rnd)
        if draw is Draw.GIVEN:
            return grown
        return type(grown)(
            grown.tree,
            grown.frontier,
            (DraftProbs(torch.tensor(Q, dtype=torch.float64).expand_as(q.prob)),),
            grown.q_index,
            grown.carry,
            grown.level,
        )

    monkeypatch.setattr(best_and_one, "spread", whole_probs)
    assert distance(first_token(one_round(Rejection(), BestAndOne((2,))), 4), P) > 0.05


def test_control_given_tokens_that_pass_for_draws_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    real = best_and_one.spread

    def all_drawn(growth: Any, q: DraftProbs, k: int, draw: Draw, allowed: Any, rnd: Any) -> Any:
        grown = real(growth, q, k, draw, allowed, rnd)
        if draw is not Draw.GIVEN:
            grown.tree.copies[:, 1:] = 1
        return grown

    monkeypatch.setattr(best_and_one, "spread", all_drawn)
    # What q cannot have drawn is always rejected, and each rejection takes its share of the residual for nothing.
    assert distance(first_token(one_round(Rejection(), BestAndOne((3,))), 4), P) > 0.05

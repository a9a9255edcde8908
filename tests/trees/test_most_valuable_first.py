"""The most valuable draw comes first, and what does not fit a budget are draws, never tokens."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.errors import OptionError
from draftwood.testing.contracts import check_drafter, check_policy, toy_round
from draftwood.testing.exact import distance, first_token, joint_error
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import context_free, near, random_probs
from draftwood.trees.grow import best_of, grow
from draftwood.trees.most_valuable_first import MostValuableFirst
from small_trees import D, Likely, P, Q, grown, one_round, paths

A, B, C = 0, 1, 2


@pytest.mark.parametrize("ahead", [1, 3])
def test_the_contracts_hold(ahead: int) -> None:
    check_policy(MostValuableFirst(ahead), vocab_size=4)
    check_drafter(TableDrafter(random_probs(6, 3)), MostValuableFirst(ahead), 6)


def test_fixture_d_is_reproduced() -> None:
    tree = grown(MostValuableFirst(), context_free(D), 3, Limit.of([9], [3]), noise=Likely()).tree
    assert paths(tree) == ((A,), (A, A), (B,))
    assert tree.score[0, 1:].exp().tolist() == pytest.approx([1.0, 0.6, 0.4])
    # What that leaves: .36 below aa, .3 below b, .24 beside aa, .1 beside b; b is drawn from (b .75, c .25).
    more = grown(MostValuableFirst(), context_free(D), 3, Limit.of([9], [7]), noise=Likely()).tree
    assert paths(more) == ((A,), (A, A), (B,), (A, A, A), (B, A), (A, B), (A, A, A, A))
    assert more.score[0, 1:].exp().tolist() == pytest.approx([1.0, 0.6, 0.4, 0.36, 0.3, 0.24, 0.216])


def test_values_never_rise_from_draw_to_draw_and_are_products_of_plain_probabilities() -> None:
    for seed in range(10):
        probs = random_probs(5, seed)
        tree = grown(MostValuableFirst(), probs, 5, Limit.of([4], [20]), seed=seed).tree
        value = tree.score[0].double().exp().tolist()
        assert all(a >= b for a, b in pairwise(value[1:]))
        path: list[tuple[int, ...]] = [(), *paths(tree)]
        parents = tree.parents[0].tolist()
        for i in range(1, tree.num_nodes):
            reach, at = 1.0, path[parents[i]]
            for d, token in enumerate(at):
                reach *= probs((0, *at[:d]))[token]
            elder = sum(probs((0, *at))[path[j][-1]] for j in range(1, i) if parents[j] == parents[i])
            assert value[i] == pytest.approx(reach * (1 - elder), rel=1e-5)


def test_running_nodes_ahead_saves_passes_and_changes_nothing_else() -> None:
    probs, limit = random_probs(6, 2), Limit.of([5, 2, 4], [16, 9, 3])
    one, four = (grown(MostValuableFirst(ahead), probs, 6, limit) for ahead in (1, 4))
    assert [paths(one.tree, row=b) for b in range(3)] == [paths(four.tree, row=b) for b in range(3)]
    assert four.passes < one.passes <= 16
    assert one.draw is Draw.DISTINCT


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_output_is_the_targets_under_any_budget(nodes: int) -> None:
    probs = random_probs(3, 7)
    found = one_round(MostValuableFirst(), 3, nodes, probs, near(probs, 3, 8, 0.5), vocab_size=3)
    assert joint_error(found, probs, 3, 4) < 1e-12


def test_rows_end_where_they_end() -> None:
    tree = grown(MostValuableFirst(2), random_probs(5, 1), 5, Limit.of([3, 1, 0, 9], [6, 9, 4, 0])).tree
    assert tree.num_drafted().tolist() == [6, 5, 0, 0] and int(tree.depths()[0].max()) <= 3


@pytest.mark.parametrize("each", [False, True], ids=["one list", "a list per row"])
def test_columns_are_mapped_to_their_tokens_and_silent_nodes_cost_nothing(each: bool) -> None:
    rnd, ids = toy_round([[1]], 9), torch.tensor([8, 3, 5])

    def step(tree: TokenTree, frontier: torch.Tensor) -> tuple[DraftProbs, None]:
        silent = tree.tokens.gather(1, frontier.clamp_min(0)).flatten() == 3
        probs = torch.where(silent[:, None], 0.0, torch.tensor([0.0, 0.6, 0.4]))
        return DraftProbs(probs, ids.expand_as(probs) if each else ids), None

    tree = grow(Proposal.roots(rnd.roots()), Limit.of([2], [9]), MostValuableFirst(), rnd, step).tree
    assert sorted(paths(tree)) == [(3,), (5,), (5, 3), (5, 5)]


def test_where_a_limit_says_stop_nothing_more_is_drawn() -> None:
    def not_below_c(tree: TokenTree, frontier: torch.Tensor, above: Any, own: torch.Tensor) -> torch.Tensor:
        return tree.tokens.gather(1, frontier.clamp_min(0)) != C

    limit = replace(Limit.of([3], [12]), proceed=not_below_c)
    tree = grown(MostValuableFirst(), context_free((0.3, 0.2, 0.5)), 3, limit).tree
    assert all(C not in path[:-1] for path in paths(tree)) and int(tree.num_drafted()) == 12


def test_nothing_ahead_is_refused() -> None:
    with pytest.raises(OptionError, match="ahead"):
        MostValuableFirst(0)


def test_control_a_budget_that_looks_at_the_tokens_fails() -> None:
    """Four draws cut to two: by the values of the draws, and by those of the tokens that came out."""
    cut = Limit.of([2], [2])

    def by_value(x: Proposal) -> Proposal:
        return x.keep(best_of(x.tree, _for(x, cut)))

    def by_token(x: Proposal) -> Proposal:
        own = x.tree.score + torch.tensor(Q)[x.tree.tokens].log()
        tree = replace(x.tree, score=own.where(torch.arange(x.tree.num_nodes) > 0, torch.zeros(())))
        return x.keep(best_of(tree, _for(x, cut)))

    good, bad = (one_round(MostValuableFirst(), 2, 4, change=change) for change in (by_value, by_token))
    assert joint_error(good, context_free(P), 4, 3) < 1e-12
    assert distance(first_token(bad, 4), P) == pytest.approx(0.032, abs=1e-4)


def _for(x: Proposal, limit: Limit) -> Limit:
    return limit.take([0] * x.tree.batch)

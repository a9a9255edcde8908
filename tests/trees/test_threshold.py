"""Every draw that is worth more than the threshold is made, and no other."""

import pytest
import torch

from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.errors import OptionError
from draftwood.testing.contracts import check_drafter, check_policy, toy_round
from draftwood.testing.exact import joint_error
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import context_free, near, random_probs
from draftwood.trees.grow import grow
from draftwood.trees.most_valuable_first import MostValuableFirst
from draftwood.trees.threshold import Threshold
from small_trees import (
    D,
    Likely,
    every_tree,
    grown,
    one_round,
    paths,
)

A, B, C = 0, 1, 2


@pytest.mark.parametrize("least", [0.0, 0.05, 0.5])
def test_the_contracts_hold(least: float) -> None:
    check_policy(Threshold(least), vocab_size=4)
    check_drafter(TableDrafter(random_probs(6, 3)), Threshold(least), 6)


def test_fixture_d_is_reproduced() -> None:
    proposal = grown(Threshold(0.35), context_free(D), 3, Limit.of([9], [99]), noise=Likely())
    value = dict(zip(paths(proposal.tree), proposal.tree.score[0, 1:].exp().tolist(), strict=True))
    assert value == pytest.approx({(A,): 1.0, (B,): 0.4, (A, A): 0.6, (A, A, A): 0.36}), "more than .35, nothing below"
    assert proposal.passes == 3
    few = grown(Threshold(0.0), context_free(D), 3, Limit.of([9], [3]), noise=Likely()).tree
    assert paths(few, Threshold().select(few, Limit.of([9], [3]))) == ((A,), (B,), (A, A))


def test_a_level_is_one_pass() -> None:
    proposal = grown(Threshold(0.01), random_probs(6, 1), 6, Limit.of([4], [40]))
    assert proposal.passes <= 4 < int(proposal.tree.num_drafted())


def test_a_threshold_of_nothing_draws_the_trees_of_the_heap() -> None:
    probs = random_probs(3, 4)
    for nodes in (1, 2, 3, 4):
        heap = every_tree(MostValuableFirst(), probs, 3, 2, nodes)
        level = every_tree(Threshold(0.0), probs, 3, 2, nodes)
        for found in (heap, level):  # nodes are numbered differently; as sets they are the same
            for tree in list(found):
                prob = found.pop(tree)
                key = tuple(sorted(tree))
                found[key] = found.get(key, 0.0) + prob
        assert heap.keys() == level.keys() and max(abs(heap[t] - level[t]) for t in heap) < 1e-12


@pytest.mark.parametrize(("least", "nodes"), [(0.3, 9), (0.2, 4), (0.0, 1), (0.0, 2), (0.0, 3)])
def test_output_is_the_targets_under_any_threshold_and_budget(least: float, nodes: int) -> None:
    probs = random_probs(3, 7)
    found = one_round(Threshold(least), 2, nodes, probs, near(probs, 3, 8, 0.5), vocab_size=3)
    assert joint_error(found, probs, 3, 3) < 1e-12


def test_a_flat_distribution_draws_no_more_than_the_budget() -> None:
    flat = context_free((1 / 50,) * 50)
    tree = grown(Threshold(0.001), flat, 50, Limit.of([2], [6])).tree
    assert int(tree.num_drafted()) == 6


def test_rows_end_where_they_end() -> None:
    limit = Limit.of([3, 1, 0, 9], [6, 9, 4, 0])
    tree = grown(Threshold(0.0), random_probs(5, 1), 5, limit).tree
    assert Threshold().select(tree, limit)[:, 1:].sum(1).tolist() == [6, 5, 0, 0]


@pytest.mark.parametrize("each", [False, True], ids=["one list", "a list per row"])
def test_columns_are_mapped_to_their_tokens_and_silent_nodes_cost_nothing(each: bool) -> None:
    rnd, ids = toy_round([[1]], 9), torch.tensor([8, 3, 5])

    def step(tree: TokenTree, frontier: torch.Tensor) -> tuple[DraftProbs, None]:
        silent = tree.tokens.gather(1, frontier.clamp_min(0)).flatten() == 3
        probs = torch.where(silent[:, None], 0.0, torch.tensor([0.0, 0.6, 0.4]))
        return DraftProbs(probs, ids.expand_as(probs) if each else ids), None

    tree = grow(Proposal.roots(rnd.roots()), Limit.of([2], [9]), Threshold(0.0), rnd, step).tree
    assert sorted(paths(tree)) == [(3,), (5,), (5, 3), (5, 5)]


@pytest.mark.parametrize("least", [-0.1, 1.0, float("nan")])
def test_a_threshold_that_is_no_probability_is_refused(least: float) -> None:
    with pytest.raises(OptionError, match="least"):
        Threshold(least)

"""One budget for the whole batch: the best nodes of all sequences, and the output stays the target's."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core import node_budget
from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.core.node_budget import selected, whole_levels, within_total
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.tree import TokenTree
from draftwood.errors import OptionError
from draftwood.testing.contracts import Always, toy_round
from draftwood.testing.exact import distance, expected_accepted, first_token, joint_error
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import context_free, near, random_probs
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.delayed import Delayed
from draftwood.trees.most_valuable_first import MostValuableFirst
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static
from draftwood.trees.stochastic_beam import StochasticBeam
from draftwood.trees.threshold import Threshold
from draftwood.verifiers.block import Block
from draftwood.verifiers.path_block import PathBlock
from draftwood.verifiers.rejection import Rejection
from draftwood.verifiers.traversal import Traversal
from every_rule import Case, label, rounds
from shared_budgets import chains, error_of_both, texts_of_both

ROUNDING = 1e-12
P, Q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)


class Within:
    """A policy whose choice is held within a budget of the batch."""

    def __init__(self, policy: Any, total: int) -> None:
        self.policy, self.total = policy, total

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def select(self, tree: TokenTree, limit: Limit) -> torch.Tensor:
        return selected(self.policy, tree, replace(limit, total=self.total))


def grown(policy: Any, limit: Limit, vocab_size: int = 6, temperature: float = 1.0) -> TokenTree:
    rnd = toy_round([[1 + b % 4] for b in range(len(limit.depths))], vocab_size, temperature=temperature)
    return TableDrafter(random_probs(vocab_size, 3)).propose(None, rnd, Proposal.roots(rnd.roots()), limit, policy).tree


# --- what is kept


@pytest.mark.parametrize(
    ("total", "sizes"),
    [(0, [0, 0, 0]), (1, [1, 0, 0]), (3, [1, 1, 1]), (4, [1, 2, 1]), (5, [2, 2, 1]), (6, [3, 2, 1]), (9, [3, 3, 3])],
)
def test_the_best_nodes_of_the_batch_are_kept_and_of_equals_the_first(total: int, sizes: list[int]) -> None:
    tree = chains()
    kept = within_total(tree, tree.live, total, Draw.DISTINCT)
    assert kept.sum(1).tolist() == [1 + size for size in sizes]


def test_without_a_budget_or_within_it_nothing_is_cut() -> None:
    tree, limit = chains(), Limit.of([3] * 3, [3] * 3)
    for total in (None, 9, 100):
        assert selected(Chain(), tree, replace(limit, total=total)) is tree.live
    bare = TokenTree.roots(torch.tensor([1, 2]))
    assert selected(Paths(2), bare, Limit.of([2, 2], [4, 4], total=1)).tolist() == [[True], [True]]


def test_what_the_policy_cut_stays_cut_and_costs_nothing() -> None:
    tree, limit = chains(), Limit.of([3] * 3, [1, 3, 3], total=5)
    assert selected(Chain(), tree, limit).sum(1).tolist() == [2, 4, 2]


POLICIES = [
    Chain(), Static((2, 2)), Static((2, 2), Draw.IID), Static((3, 1), Draw.GIVEN), Paths(3), Delayed(1, 2), BestFirst(3),
    MostValuableFirst(2), Threshold(0.02), StochasticBeam(3),
]  # fmt: skip


@pytest.mark.one_in(7)
@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("policy", POLICIES, ids=label)
def test_every_cut_is_closed_and_fits(policy: Any, temperature: float) -> None:
    limit = Limit.of([3, 3, 1, 2], [9, 6, 9, 8])
    tree = grown(policy, limit, temperature=temperature)
    parent, below = tree.parents.clamp_min(0), tree.parents >= 0
    whole, sizes = policy.select(tree, limit), set[int]()
    for total in range(sum(limit.budgets) + 1):
        kept = selected(policy, tree, replace(limit, total=total))
        assert bool((kept <= whole).all()) and bool(kept[:, 0].all())
        assert bool((~(kept & below) | kept.gather(1, parent)).all()), "a kept node has a cut parent"
        assert int(kept[:, 1:].sum()) <= total
        sizes.add(int(kept[:, 1:].sum()))
        for b, i, j in product(range(4), range(1, tree.num_nodes), range(1, tree.num_nodes)):
            if kept[b, i] and whole[b, j] and tree.parents[b, i] == tree.parents[b, j] and tree.copies[b, j]:
                assert kept[b, j] or (j > i and policy.draw is not Draw.IID), "a drawn sibling is missing"
    assert len(sizes) > 3
    assert bool((kept == whole).all())


@pytest.mark.parametrize("policy", POLICIES, ids=label)
def test_a_budget_needs_no_host_read(policy: Any) -> None:
    limit = Limit.of([3, 3, 1, 2], [9, 6, 9, 8], total=11)
    tree = grown(policy, limit)
    plain = selected(policy, tree, limit)
    with as_if_on_a_device(), HostReads() as reads:
        kept = selected(policy, tree, limit)
    assert torch.equal(kept, plain) and reads.total == 0, reads.by_name


def test_limits_pass_the_budget_on() -> None:
    limit = Limit.of([2, 3], [4, 5], total=6)
    assert limit.take([1]).total == limit.at_most([1, 1], [3, 3]).total == 6
    rnd = toy_round([[1], [2]], 4)
    assert Fixed(2, 4, total=5).plan(None, rnd, None).total == 5  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="total cannot be -1"):
        Fixed(2, 4, total=-1)


# --- exact, one sequence: a branch at a time, because a budget binds all branches of a batch together


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("rule", "policy", "vocab_size", "depth", "totals"),
    [
        (Rejection(), Static((2,)), 4, 1, (1,)),
        (Rejection(), Static((2, 1)), 2, 2, (1, 2, 3)),
        (Rejection(), Static((2,), Draw.IID), 4, 1, (1,)),
        (Rejection(), Static((2, 1), Draw.IID), 2, 2, (2, 3)),
        (Rejection(), MostValuableFirst(), 3, 2, (1, 2)),
        (Rejection(), Threshold(0.05), 2, 2, (2, 3)),
        (Traversal(), Static((2, 1)), 2, 2, (2, 3)),
        (Traversal(), Static((1, 2), Draw.IID), 2, 2, (2,)),
        (Block(), Chain(), 3, 2, (1,)),
        (PathBlock(), Paths(2), 2, 2, (2, 3)),
    ],
    ids=label,
)
def test_a_budget_of_the_batch_does_not_bias(
    rule: Any, policy: Any, vocab_size: int, depth: int, totals: tuple[int, ...]
) -> None:
    p = random_probs(vocab_size, 3)
    q = near(p, vocab_size, 5, 0.7)
    nodes = 3 if isinstance(policy, MostValuableFirst | Threshold) else 100
    whole = expected_accepted(rounds(rule, Case(policy, vocab_size, depth, nodes), p, q))
    for total in totals:
        found = rounds(rule, Case(Within(policy, total), vocab_size, depth, nodes), p, q, width=1)
        assert joint_error(found, p, vocab_size, depth + 1) < ROUNDING
        assert expected_accepted(found) < whole, "something was cut"


def test_cutting_by_the_drawn_tokens_own_probability_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    real = node_budget.within_total

    def by_token(tree: TokenTree, *more: Any) -> torch.Tensor:
        return real(replace(tree, score=torch.tensor(Q)[tree.tokens].log()), *more)

    case = Case(Within(Static((2,)), 1), 4, 1)
    found = rounds(Rejection(), case, context_free(P), context_free(Q), width=1)
    assert distance(first_token(found, 4), P) < ROUNDING
    monkeypatch.setattr(node_budget, "within_total", by_token)
    found = rounds(Rejection(), case, context_free(P), context_free(Q), width=1)
    assert distance(first_token(found, 4), P) == pytest.approx(0.1409, abs=1e-4)


@pytest.mark.slow
def test_cutting_between_merged_draws_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three draws, room for one: cut where they differ and kept where they are equal, the rule sees more equal ones than
    there are."""
    real = node_budget.within_total

    def by_node(tree: TokenTree, kept: torch.Tensor, total: int, draw: Draw, shape: Shape) -> torch.Tensor:
        return real(tree, kept, total, Draw.DISTINCT, shape)

    case = Case(Within(Static((3,), Draw.IID), 1), 4, 1)
    monkeypatch.setattr(node_budget, "within_total", by_node)
    found = rounds(Rejection(), case, context_free(P), context_free(Q), width=1)
    assert distance(first_token(found, 4), P) > 0.005


def test_ending_one_of_several_paths_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    real = node_budget.within_total

    def by_siblings(tree: TokenTree, kept: torch.Tensor, total: int, draw: Draw, shape: Shape) -> torch.Tensor:
        return real(tree, kept, total, draw, Shape.TREE)

    p = random_probs(2, 3)
    monkeypatch.setattr(node_budget, "within_total", by_siblings)
    found = rounds(PathBlock(), Case(Within(Paths(2), 3), 2, 2), p, near(p, 2, 5, 0.7), width=1)
    assert joint_error(found, p, 2, 3) > 0.001


# --- exact, two sequences that share a budget: every outcome of both together


def both(policy: Any, total: int, p: Any, q: Any, vocab_size: int, depth: int, nodes: int) -> dict[Any, float]:
    within: Any = Within(policy, total)
    return texts_of_both(
        Recipe(drafter=TableDrafter(q), policy=within, verifier=Rejection(), controller=Always(depth, nodes)),
        p,
        vocab_size,
    )


@pytest.mark.parametrize(
    ("policy", "depth", "nodes", "total"),
    [(MostValuableFirst(), 2, 2, 3), (Static((2,), Draw.IID), 1, 2, 2), (Chain(), 2, 2, 3)],
    ids=label,
)
@pytest.mark.slow
def test_sequences_that_share_a_budget_are_exact_together(policy: Any, depth: int, nodes: int, total: int) -> None:
    p = random_probs(2, 3)
    q = near(p, 2, 6, 0.8)
    found = both(policy, total, p, q, 2, depth, nodes)
    assert sum(found.values()) == pytest.approx(1, abs=ROUNDING)
    assert error_of_both(found, p, 2, depth + 1) < ROUNDING


def test_a_share_that_depends_on_the_other_sequences_token_and_ones_own_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the more probable of two drawn tokens is kept."""
    p, q = random_probs(2, 3), near(random_probs(2, 3), 2, 6, 0.8)
    real = node_budget.within_total

    def by_token(tree: TokenTree, *more: Any) -> torch.Tensor:
        own = torch.tensor([q((i,)) for i in range(2)])
        return real(replace(tree, score=own.gather(1, tree.tokens)), *more)

    assert error_of_both(both(Chain(), 1, p, q, 2, 1, 1), p, 2, 2) < ROUNDING
    monkeypatch.setattr(node_budget, "within_total", by_token)
    assert error_of_both(both(Chain(), 1, p, q, 2, 1, 1), p, 2, 2) > 0.005


def test_a_tree_drafted_before_its_limit_loses_whole_levels() -> None:
    #  0 ┬ 1 ── 3        merged draws count as often as they were drawn: levels of 3, 1 and 1
    #    └ 2 (twice)     3 ── 4
    tree = TokenTree.roots(torch.zeros(5, dtype=torch.int64))
    for parents, copies in (([0, 0], [1, 2]), ([1], [1]), ([3], [1])):
        at = torch.tensor([parents] * 5)
        tree = tree.add(at, torch.arange(at.shape[1]).expand_as(at), live=at >= 0, copies=torch.tensor([copies] * 5))
    limit = Limit.of([3, 3, 3, 3, 1], [5, 4, 3, 2, 9])
    assert whole_levels(tree, limit).sum(1).tolist() == [5, 4, 3, 1, 3]
    with as_if_on_a_device(), HostReads() as reads:
        whole_levels(tree, limit)
    assert reads.total == 0, reads.by_name

"""A static tree has the same shape every round."""

import pytest
import torch

from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.testing.contracts import check_policy, toy_round
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import context_free, random_probs
from draftwood.trees.static import Static


@pytest.mark.parametrize("draw", list(Draw))
def test_the_contract_of_policies_holds(draw: Draw) -> None:
    check_policy(Static((3, 2, 1), draw))


def test_the_contract_has_teeth() -> None:
    class Careless(Static):
        def select(self, tree, limit):  # type: ignore[no-untyped-def]
            return tree.live & (torch.arange(tree.num_nodes) >= tree.num_nodes - int(limit.nodes[0]))

    with pytest.raises(AssertionError, match=r"cut parent|earlier one"):
        check_policy(Careless((2, 2)))

    class Modest(Static):
        def max_children(self, limit: Limit) -> int:
            return 1

    with pytest.raises(AssertionError, match="more children than max_children"):
        check_policy(Modest((2, 2)))


def propose(policy: Static, nodes: int = 100) -> Proposal:
    rnd = toy_round([[1], [2]], 8)
    limit = Limit.of([len(policy.widths)] * 2, [nodes] * 2)
    return TableDrafter(random_probs(8, 1)).propose(None, rnd, Proposal.roots(rnd.roots()), limit, policy)


def test_levels_multiply() -> None:
    policy = Static((4, 2, 2))
    depth = propose(policy).tree.depths()
    assert [int((depth[0] == d).sum()) for d in range(4)] == [1, 4, 8, 16] and policy.num_nodes == 28


def test_draws_without_replacement_are_distinct_and_stop_when_nothing_is_left() -> None:
    tree = propose(Static((5,))).tree
    assert len(set(tree.tokens[0, 1:].tolist())) == 5
    rnd = toy_round([[0]], 4)
    two = TableDrafter(context_free((0.5, 0.0, 0.5, 0.0)))
    tree = two.propose(None, rnd, Proposal.roots(rnd.roots()), Limit.of([1], [4]), Static((4,))).tree
    assert sorted(tree.tokens[0][tree.live[0]].tolist()[1:]) == [0, 2]


def test_equal_independent_draws_become_one_node_that_counts_them() -> None:
    rnd = toy_round([[0]], 3)
    sure = TableDrafter(context_free((0.0, 1.0, 0.0)))
    tree = sure.propose(None, rnd, Proposal.roots(rnd.roots()), Limit.of([1], [4]), Static((4,), Draw.IID)).tree
    assert tree.live[0].tolist() == [True, True, False, False, False] and tree.copies[0, 1] == 4


def test_given_children_are_the_most_probable_tokens() -> None:
    probs = random_probs(8, 1)
    tree = propose(Static((3,), Draw.GIVEN)).tree
    best = torch.tensor(probs((1,))).topk(3).indices.tolist()
    assert tree.tokens[0, 1:].tolist() == best and not tree.copies.any()

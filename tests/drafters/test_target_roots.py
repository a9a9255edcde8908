"""First tokens from the target's own row: where they come from, and that nothing of one text reaches another."""

from dataclasses import replace
from typing import Any

import torch

from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.drafters.target_roots import TargetRoots, _Begun
from draftwood.testing.contracts import toy_round
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import context_free
from draftwood.trees.static import Static

Q = context_free((0.0, 0.0, 0.0, 1.0))


def proposed(left: dict[int, Any], temperature: float = 1.0) -> Any:
    """Trees of three rows, of which some have a row of the target left: by row, whose it is and the distribution."""
    drafter = TargetRoots(TableDrafter(Q))
    rnd = toy_round(((0,), (1, 2), (2,)), 4, temperature=temperature)
    state = drafter.init(3)
    for b, (late, probs) in left.items():
        state.left[b] = rnd.requests[b], len(rnd.requests[b].known) + late, torch.tensor(probs, dtype=torch.float64)
    limit = Limit.of([2] * 3, [4] * 3)
    return drafter.propose(state, rnd, Proposal.roots(rnd.roots()), limit, Static((2, 1)))


def test_rows_with_a_distribution_begin_with_it_and_the_others_as_ever() -> None:
    made = proposed({1: (0, (0.5, 0.5, 0.0, 0.0))})
    tree = made.tree
    assert sorted(tree.tokens[1, 1:3].tolist()) == [0, 1] and tree.copies[1, 1:3].tolist() == [0, 0]
    assert tree.tokens[0, 1] == tree.tokens[2, 1] == 3 and tree.copies[0, 1] == 1
    assert made.q_indices()[1, 0] == -1 and made.q_indices()[0, 0] >= 0, "a given token has no distribution"
    below = tree.live & (tree.depths() == 2)
    assert below.sum(1).tolist() == [1, 2, 1] and bool((tree.tokens[below] == 3).all())


def test_a_row_of_another_length_is_forgotten() -> None:
    made = proposed({1: (1, (0.5, 0.5, 0.0, 0.0))})
    assert bool((made.tree.copies[made.tree.live][3:] >= 0).all()) and made.tree.tokens[1, 1] == 3


def test_greedy_rows_take_the_best_tokens_in_order() -> None:
    tree = proposed({0: (0, (0.1, 0.2, 0.4, 0.3))}, temperature=0.0).tree
    assert tree.tokens[0, 1:3].tolist() == [2, 3]


def test_a_distribution_on_one_token_gives_one_beginning() -> None:
    tree = proposed({0: (0, (0.0, 1.0, 0.0, 0.0))}).tree
    assert tree.live[0, 1:3].tolist() == [True, False] and tree.tokens[0, 1] == 1


def test_what_is_left_goes_with_its_text() -> None:
    drafter = TargetRoots(TableDrafter(Q))
    rnd = toy_round(((0,),), 4)
    state = drafter.init(1)
    for leave in (lambda: drafter.free(state, [0]), lambda: drafter.admit(state, 0, rnd.requests[0])):
        state.left[0] = rnd.requests[0], 1, torch.ones(4)
        leave()
        assert not state.left
    assert drafter.draws == drafter.drafter.draws
    assert drafter.needs == replace(drafter.drafter.needs, trims=False), (
        "its first tokens come from the whole vocabulary"
    )


def test_what_is_kept_is_the_policys_own_choice() -> None:
    policy, limit = Static((2, 1)), Limit.of([2], [3])
    tree = TableDrafter(context_free((0.4, 0.3, 0.2, 0.1))).propose(
        None, toy_round(((0,),), 4), Proposal.roots(torch.tensor([0])), limit, policy
    ).tree  # fmt: skip
    begun = _Begun(policy, torch.zeros(1, 4), torch.tensor([False]))
    assert torch.equal(begun.select(tree, limit), policy.select(tree, limit))
    assert (begun.draw, begun.shape) == (policy.draw, policy.shape)

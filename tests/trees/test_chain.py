"""A chain is one line of tokens."""

import torch

from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.round import TARGET
from draftwood.testing.contracts import check_policy, toy_round
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import random_probs
from draftwood.trees.chain import Chain


def test_the_contract_of_policies_holds() -> None:
    check_policy(Chain())
    check_policy(Chain(Draw.GIVEN))


def test_rows_end_at_their_own_depth() -> None:
    rnd = toy_round([[1], [2], [3]], 6)
    limit = Limit.of([3, 0, 1], [3, 3, 3])
    tree = TableDrafter(random_probs(6, 1)).propose(None, rnd, Proposal.roots(rnd.roots()), limit, Chain()).tree
    assert tree.num_drafted().tolist() == [3, 0, 1]
    assert tree.parents[0].tolist() == [-1, 0, 1, 2]


def test_a_given_chain_guesses_with_the_targets_own_uniform() -> None:
    probs = random_probs(6, 1)
    rnd = toy_round([[1]], 6, seed=5)
    limit = Limit.of([4], [4])
    drafted = TableDrafter(probs).propose(None, rnd, Proposal.roots(rnd.roots()), limit, Chain(Draw.GIVEN))
    text: tuple[int, ...] = (1,)
    for depth in range(4):
        p = torch.tensor([probs(text)], dtype=torch.float64)
        text += (int(rnd.pick(TARGET, torch.tensor([depth]), p, torch.ones(1).bool())),)
    assert drafted.tree.tokens[0].tolist() == list(text), "a draft that equals the target guesses every token"
    assert drafted.q is None and not drafted.tree.copies.any()


def test_a_given_chain_of_a_greedy_request_is_the_best_token_each_time() -> None:
    probs, rnd = random_probs(6, 1), toy_round([[1]], 6, temperature=0.0)
    drafted = TableDrafter(probs).propose(None, rnd, Proposal.roots(rnd.roots()), Limit.of([4], [4]), Chain(Draw.GIVEN))
    text: tuple[int, ...] = (1,)
    for _ in range(4):
        text += (int(torch.tensor(probs(text)).argmax()),)
    assert drafted.tree.tokens[0].tolist() == list(text)

"""A ranked chain is a chain whose scores do not know their own tokens."""

import torch

from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.testing.contracts import check_policy, toy_round
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import random_probs
from draftwood.trees.chain import Chain
from draftwood.trees.ranked_chain import RankedChain

Q = random_probs(5, 3)


def test_the_contract_holds() -> None:
    for draw in Draw:
        check_policy(RankedChain(draw))


def test_tokens_are_those_of_a_chain_and_scores_hold_the_best_probability() -> None:
    rnd, limit = toy_round([[1], [2, 3], [4]], 5), Limit.of([3, 3, 2], [3, 3, 2])
    base = Proposal.roots(rnd.roots())
    ranked, plain = (TableDrafter(Q).propose(None, rnd, base, limit, policy) for policy in (RankedChain(), Chain()))
    assert torch.equal(ranked.tree.tokens, plain.tree.tokens) and torch.equal(ranked.tree.live, plain.tree.live)
    text = [1]
    reach = 0.0
    for node in range(1, 4):
        probs = torch.tensor(Q(tuple(text)))
        assert abs(float(ranked.tree.score[0, node]) - (reach + float(probs.max().log()))) < 1e-5
        token = int(ranked.tree.tokens[0, node])
        reach += float(probs[token].log())
        text.append(token)

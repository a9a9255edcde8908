"""Growth is one loop for all policies, and a greedy row takes the best tokens where others draw."""

from typing import Any

import pytest
import torch

from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.sampling.params import SamplingParams
from draftwood.testing.contracts import toy_round
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import random_probs
from draftwood.trees.best_and_one import BestAndOne
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.grow import NO_NUMBERS, grow
from draftwood.trees.most_valuable_first import MostValuableFirst
from draftwood.trees.shaped import Shaped
from draftwood.trees.static import Static
from draftwood.trees.stochastic_beam import StochasticBeam
from draftwood.trees.threshold import Threshold

PROBS = random_probs(8, 3)
POLICIES = [
    Static((3, 2)),
    BestAndOne((3, 2)),
    MostValuableFirst(2),
    Threshold(0.01),
    StochasticBeam(3),
    Shaped((0, 0, 0, 1, 1, 2)),
]


def propose(policy: Any, *temperatures: float, seed: int = 0) -> Proposal:
    params = [SamplingParams(temperature=temperature, seed=seed) for temperature in temperatures]
    requests = tuple(Request(i, [1], options, 8) for i, options in enumerate(params))
    rnd = Round(torch.arange(len(temperatures)), torch.ones(len(temperatures), dtype=torch.int64), requests)
    limit = Limit.of([2] * len(temperatures), [6] * len(temperatures))
    return TableDrafter(PROBS).propose(None, rnd, Proposal.roots(rnd.roots()), limit, policy)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
def test_greedy_row_takes_the_best_tokens_as_given_ones(policy: Any) -> None:
    made = propose(policy, 0.0)
    tree = made.tree
    children = tree.tokens[0][tree.live[0] & (tree.parents[0] == 0)].tolist()
    assert len(children) > 1, "a tree, no chain"
    assert children == torch.tensor(PROBS((1,))).topk(len(children)).indices.tolist()
    assert not tree.copies.any() and not (made.q_indices() >= 0).any()
    assert torch.equal(tree.tokens, propose(policy, 0.0, seed=5).tree.tokens), "no chance in it"


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
def test_row_that_draws_is_the_same_beside_a_greedy_one(policy: Any) -> None:
    alone, beside = propose(policy, 1.0).tree, propose(policy, 1.0, 0.0).tree
    for name in ("tokens", "parents", "copies"):
        assert getattr(alone, name)[0][alone.live[0]].tolist() == getattr(beside, name)[0][beside.live[0]].tolist()
    assert beside.copies[0].any() and not beside.copies[1].any()


@pytest.mark.parametrize("policy", [MostValuableFirst(1), MostValuableFirst(4), Threshold(0.0)], ids=repr)
def test_greedy_rows_of_dynamic_trees_hold_the_likeliest_paths(policy: Any) -> None:
    made = propose(policy, 0.0).tree
    paths = {
        (a, *rest): PROBS((1,))[a] * (PROBS((1, a))[rest[0]] if rest else 1.0)
        for a in range(8)
        for rest in [(), *((b,) for b in range(8))]
    }
    best = sorted(paths, key=lambda path: -paths[path])[:6]
    kept = policy.select(made, Limit.of([2], [6]))[0].nonzero()[:, 0][1:]
    found = [tuple(t for t in path if t >= 0) for path in made.path_tokens(kept[None])[0].tolist()]
    assert sorted(found) == sorted(best)


@pytest.mark.parametrize("level", [0, 1])
def test_probabilities_that_are_no_numbers_end_growth_with_the_reason(level: int) -> None:
    rnd = toy_round([[1], [2]], 4)

    def step(tree: Any, frontier: torch.Tensor) -> tuple[DraftProbs, None]:
        broken = int(tree.depths().max()) >= level
        return DraftProbs(torch.full((frontier.numel(), 4), torch.nan if broken else 0.25)), None

    for policy in (BestFirst(2), Chain(Draw.GIVEN), Static((2, 2, 1))):
        made = grow(Proposal.roots(rnd.roots()), Limit.of([3, 3], [8, 8]), policy, rnd, step)
        assert made.fault == NO_NUMBERS and int(made.tree.depths().max()) == level

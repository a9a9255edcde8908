"""A chain ends where a rejection has become likely: by hand, by enumeration of all coins, and with planted faults."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.controllers.stopping.rejection_risk import RejectionRisk
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit, Load
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.errors import DrafterError, OptionError
from draftwood.testing.contracts import check_controller, toy_round
from draftwood.testing.exact import Free, expected_accepted, joint_error
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import context_free, random_probs
from draftwood.trees.chain import Chain
from draftwood.trees.grow import grow
from lengths import Telling, lengths_of, worlds
from look_ahead import pair

LOAD = Load(cost_model=Free(), batch_size=1, waiting=0, context=1)
P, Q = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5)


def by_token(*chances: float) -> Callable[[Tensor], Tensor]:
    """A judge that knows a chance for every token."""
    return lambda hidden: torch.tensor(chances)[hidden[..., 0].long()]


def rule(*chances: float, threshold: float = 0.5, depth: int = 6, least: int = 0) -> RejectionRisk:
    return RejectionRisk(depth, by_token(*chances), threshold, least)


def drafted(made: RejectionRisk, texts: int = 1) -> list[int]:
    """How many tokens of chains that consist of token 1 alone are drafted."""
    rnd = toy_round([[0]] * texts, 2)
    base = Proposal.roots(rnd.roots())
    limit = made.plan(None, rnd, LOAD)
    return lengths_of(Telling(context_free((0.0, 1.0))).propose(None, rnd, base, limit, Chain(Draw.GIVEN)).tree)


def test_a_threshold_of_1_gives_the_full_length_and_sure_tokens_never_stop() -> None:
    assert drafted(rule(0.0, 0.0, threshold=1.0)) == [6]
    for threshold in (0.0, 0.3, 1.0):
        assert drafted(rule(0.0, 1.0, threshold=threshold)) == [6]


def test_the_risk_is_that_of_all_tokens_but_the_newest() -> None:
    """A = .8: behind n tokens the risk is 1 - .8^(n - 1) = 0, .2, .36, .488, .590, and the root does not count."""
    for threshold, length in ((0.1, 2), (0.3, 3), (0.4, 4), (0.5, 5), (0.6, 6)):
        assert drafted(rule(0.0, 0.8, threshold=threshold)) == [length]


def test_drafts_have_at_least_and_at_most_so_many_tokens() -> None:
    for least, depth, length in ((0, 6, 2), (2, 6, 2), (4, 6, 4), (6, 6, 6), (4, 3, 3), (0, 1, 1), (0, 0, 0)):
        assert drafted(rule(0.0, 0.0, threshold=0.1, least=least, depth=depth)) == [length]


def test_what_is_not_a_number_stops() -> None:
    assert drafted(rule(0.0, float("nan"))) == [2]


def test_no_pass_is_run_that_is_not_used_and_the_judge_reads_states_of_parents() -> None:
    rnd, seen = toy_round([[0]], 2), list[Any]()

    def judge(hidden: Tensor) -> Tensor:
        seen.append(hidden[0, :, 0].tolist())
        return torch.full_like(hidden[..., 0], 0.8)

    def step(tree: TokenTree, frontier: Tensor) -> tuple[DraftProbs, Tensor]:
        return DraftProbs(torch.full((1, 2), 0.5)), (frontier[..., None] + 100).double()

    limit = RejectionRisk(6, judge, 0.3, 0).plan(None, rnd, LOAD)
    made = grow(Proposal.roots(rnd.roots()), limit, Chain(), rnd, step)
    assert made.passes == 3 == int(made.tree.num_drafted()) and seen == [[100], [101], [102]]


def test_a_drafter_without_hidden_states_is_refused() -> None:
    rnd = toy_round([[0]], 2)
    limit = rule(1.0, 1.0).plan(None, rnd, LOAD)
    with pytest.raises(DrafterError, match="shows none"):
        TableDrafter(context_free((0.5, 0.5))).propose(None, rnd, Proposal.roots(rnd.roots()), limit, Chain())


def test_a_sequence_is_stopped_at_the_same_token_alone_and_in_a_batch() -> None:
    texts = [[0], [1], [0, 1], [1, 1], [1, 0]]
    rnd, drafter = toy_round(texts, 3, temperature=1.0), Telling(random_probs(3, 5))
    made = rule(0.9, 0.4, 0.7, depth=8)

    def drafts(taken: list[int]) -> list[list[int]]:
        part, limit = rnd.take(taken), made.plan(None, rnd, LOAD).take(taken)
        tree = drafter.propose(None, part, Proposal.roots(part.roots()), limit, Chain()).tree
        return [t[on].tolist() for t, on in zip(tree.tokens, tree.live, strict=True)]

    whole = drafts([0, 1, 2, 3, 4])
    assert len({len(each) for each in whole}) > 1
    for taken in ([0], [3], [1, 4], [0, 2, 3]):
        assert drafts(taken) == [whole[b] for b in taken]


def test_nothing_is_read_from_a_device() -> None:
    made, rnd = RejectionRisk(3, lambda hidden: hidden[..., 0].sigmoid(), 0.5), toy_round([[1]], 3)
    tree, own = Proposal.roots(rnd.roots()).tree, torch.ones(1, 1)
    with as_if_on_a_device(), HostReads() as reads:
        limit = made.plan(None, rnd, LOAD)
        for node in range(3):
            at = torch.full_like(tree.tokens[:, :1], node)
            limit.proceed(tree, at, torch.ones(1, 1, 4) if node else None, own)
            tree = tree.add(at, at, live=at >= 0)
    assert reads.total == 0, reads.by_name


def test_it_keeps_the_contract_of_controllers() -> None:
    check_controller(rule(1.0, 1.0))


@pytest.mark.parametrize("wrong", [{"depth": -1}, {"least": -1}, {"threshold": 1.5}, {"threshold": float("nan")}])
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(wrong))} cannot be .*\nhint: "):
        RejectionRisk(**{"depth": 2, "judge": by_token(1.0), "threshold": 0.5, **wrong})


# Exactness, by enumeration of all coins.


@pytest.mark.parametrize("chances", [(0.9, 0.2, 0.6), (0.1, 0.9, 0.4), (0.0, 0.0, 1.0)])
def test_rejection_is_exact_whatever_the_judge_says(chances: tuple[float, ...]) -> None:
    p, q = pair(3, 7)
    found = worlds(rule(*chances, depth=3), p, q, 3)
    assert joint_error(found, p, 3, 4) < 1e-12
    assert 0 < expected_accepted(found) < 3


def test_whole_requests_are_exact() -> None:
    p, q = pair(2, 9)
    assert joint_error(worlds(rule(0.9, 0.2, depth=3), p, q, 2, tokens=4), p, 2, 4) < 1e-12


@dataclass(frozen=True, slots=True)
class Spoiled(RejectionRisk):
    """Asks a question of its own in place of the judge's, behind the first token."""

    asks: Callable[[Round, Tensor], Tensor] = lambda rnd, at: at > 0

    def plan(self, state: None, rnd: Round, load: Load) -> Limit:
        def proceed(tree: TokenTree, frontier: Tensor, above: Any, own: Tensor) -> Tensor:
            return (tree.num_nodes == 1) | self.asks(rnd, frontier)

        return replace(RejectionRisk.plan(self, state, rnd, load), proceed=proceed)


def accept_coin(below: int) -> Callable[[Round, Tensor], Tensor]:
    """The coin that judges a node: this one, or the one that would be drawn below it."""
    return lambda rnd, at: rnd.coin("accept", at + below, torch.full(at.shape, 0.5, dtype=torch.float64), at >= 0)


def token_below(rnd: Round, at: Tensor) -> Tensor:
    probs = torch.tensor(Q).double().expand(*at.shape, -1)
    return rnd.draw(at, probs, 1, Draw.IID, at >= 0)[..., 0] == 2


def spoiled_error(asks: Callable[[Round, Tensor], Tensor]) -> float:
    made = Spoiled(2, by_token(1.0, 1.0, 1.0), 0.5, asks=asks)
    return joint_error(worlds(made, context_free(P), context_free(Q), 3), context_free(P), 3, 3)


def test_control_a_rule_that_looks_at_the_coin_or_the_token_below_biases() -> None:
    assert spoiled_error(accept_coin(1)) > 0.01
    assert spoiled_error(token_below) > 0.01


def test_what_judges_the_node_itself_changes_the_length_alone() -> None:
    """So the bias of the controls comes from what is drawn and judged below the node."""
    assert spoiled_error(accept_coin(0)) < 1e-12

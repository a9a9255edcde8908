"""The length of a draft is predicted from what is committed: every rule stays exact, and an oracle wastes nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.controllers.stopping.predicted_length import PredictedLength
from draftwood.core.forward import FINAL, Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit, Load
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.learners.lengths.rollout import agreed
from draftwood.errors import OptionError
from draftwood.testing.contracts import check_controller, toy_round
from draftwood.testing.exact import Free, expected_accepted, joint_error
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import context_free
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from lengths import lengths_of, worlds
from look_ahead import pair
from own_layers import TARGETS

LOAD = Load(cost_model=Free(), batch_size=1, waiting=0, context=1)
P, Q = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5)


def by_token(*lengths: float) -> Callable[[Tensor, Tensor], Tensor]:
    """A predictor that knows a length for every token before the root."""
    return lambda embedding, feature: torch.tensor(lengths)[embedding[:, 0].long()]


def behind(tokens: list[int]) -> tuple[Round, Any]:
    """A round whose roots follow these tokens, and the state of a controller that saw the rounds before it."""
    rnd = toy_round([[t, 0] for t in tokens], 3)
    rnd.origin = {0: torch.tensor(tokens)[:, None].double(), FINAL: torch.zeros(len(tokens), 1).double()}
    each = zip(rnd.host_slots, rnd.requests, rnd.host_lengths, strict=True)
    return rnd, {slot: (request, length) for slot, request, length in each}


def planned(rule: PredictedLength, tokens: list[int], fresh: bool = True) -> Limit:
    rnd, state = behind(tokens)
    return rule.plan(state if fresh else {}, rnd, LOAD)


def test_the_length_is_rounded_and_bounded() -> None:
    assert planned(PredictedLength(3, by_token(-0.7, 1.4, 7.0)), [0, 1, 2]).depths == (0, 1, 3)
    assert planned(PredictedLength(3, by_token(0.6, float("nan"), 2.5)), [0, 1, 2]).depths == (1, 0, 2)


def test_a_round_without_a_feature_of_its_root_is_plain() -> None:
    assert planned(PredictedLength(3, by_token(3.0, 3.0, 3.0)), [0, 1, 2], fresh=False).depths == (0, 0, 0)


def test_on_a_device_the_length_is_never_read_and_cuts_the_same_chains() -> None:
    rule, rnd = PredictedLength(4, by_token(0.0, 2.0, 9.0)), toy_round([[0], [1], [2]], 3)
    drafter = TableDrafter(context_free(Q))
    base = Proposal.roots(rnd.roots())
    here = planned(rule, [0, 1, 2])
    own, state = behind([0, 1, 2])
    with as_if_on_a_device(), HostReads() as reads:
        limit = rule.plan(state, own, LOAD)
        cut = limit.at_most([4, 4, 4], [4, 4, 4]).take([2, 1])
    assert reads.total == 0, reads.by_name
    assert limit.depths == (4, 4, 4) and limit.tier == here.tier, "shapes are those of the longest draft"
    assert limit.depth.tolist() == [0, 2, 4] == list(here.depths)
    assert cut.depth.tolist() == [4, 2]
    for policy in (Chain(), Chain(Draw.GIVEN)):
        with as_if_on_a_device():
            made = drafter.propose(None, rnd, base, limit, policy)
            assert lengths_of(made.keep(policy.select(made.tree, limit)).tree) == [0, 2, 4]
        assert lengths_of(drafter.propose(None, rnd, base, here, policy).tree) == [0, 2, 4]


@pytest.mark.parametrize("backend", TARGETS)
@pytest.mark.slow
def test_the_length_depends_on_nothing_but_the_committed_text(backend: str) -> None:
    """Whatever else is in the batch, and however the text was drafted: the same text has the same length."""
    target = TARGETS[backend]()
    seen: dict[tuple[int, ...], set[float]] = {}

    @dataclass(frozen=True, slots=True)
    class Noting(PredictedLength):
        def lengths(self, rnd: Round) -> Tensor:
            k = PredictedLength.lengths(self, rnd)
            for request, length in zip(rnd.requests, k.tolist(), strict=True):
                seen.setdefault(tuple(request.known), set()).add(length)
            return k

    def predictor(embedding: Tensor, feature: Tensor) -> Tensor:
        return 2 + 4 * torch.tanh(40 * embedding[:, 0] * feature[:, 1])

    for slots, draft in ((1, "first:3"), (4, "first:3"), (3, "first:4")):
        drafter = recipes.drafter(f"speculative_sampling:draft={draft}", target)
        recipe = Recipe(drafter=drafter, policy=Chain(Draw.GIVEN), verifier=Match(), controller=Noting(4, predictor))
        prompts = [[1, 2, 3], [4, 5], [6], [7, 8, 9]]
        serve(make_engine(target, recipe, slots=slots), prompts, SamplingParams(max_tokens=12))
    assert all(len(found) == 1 for found in seen.values())
    assert len({k for found in seen.values() for k in found}) > 2 and len(seen) > 8


# An oracle, and the plain step.


def wasted(done: list[Any]) -> int:
    """Drafted tokens that were not accepted."""
    return sum(r.stats.draft_tokens - sum(r.stats.accepted) for r in done)


def test_with_0_every_round_is_plain_and_reads_no_draft() -> None:
    found = worlds(PredictedLength(3, by_token(0, 0, 0)), context_free(P), context_free(Q), 3, tokens=3)
    assert expected_accepted(found) == 0 and joint_error(found, context_free(P), 3, 3) < 1e-12


def test_an_oracle_drafts_what_is_accepted_and_not_a_token_more() -> None:
    target = TARGETS["float64"]()
    drafter = recipes.drafter("speculative_sampling:draft=first:3", target)
    prompts, params = [[1, 2, 3], [4, 5], [6], [7, 8, 9]], SamplingParams(max_tokens=24)

    @dataclass(frozen=True, slots=True)
    class Oracle(PredictedLength):
        """Knows the answers, and drafts each root's chain beforehand."""

        labels: Any = None

        def lengths(self, rnd: Round) -> Tensor:
            return torch.tensor([self.labels(request) for request in rnd.requests])

    def run(controller: Any) -> list[Any]:
        recipe = Recipe(drafter=drafter, policy=Chain(Draw.GIVEN), verifier=Match(), controller=controller)
        return serve(make_engine(target, recipe), prompts, params)

    whole = run(Fixed(4))
    answers = {tuple(r.prompt): [*r.prompt, *r.output] for r in whole}

    def label(request: Any) -> int:
        return agreed(drafter, answers[tuple(request.prompt)], {}, [request.num_known - 1], 4)[0]

    best = run(Oracle(4, by_token(0), labels=label))
    assert [r.output for r in best] == [r.output for r in whole]
    assert sum(r.stats.draft_tokens for r in best) > 0 == wasted(best), "what is drafted is accepted"
    assert wasted(whole) > 0, "a fixed length wastes some"
    assert sum(r.stats.target_passes for r in best) <= sum(r.stats.target_passes for r in whole) + len(prompts)


# Longer than predicted, while the drafter is sure.


def test_an_unsure_draft_ends_where_it_is_longer_than_predicted_and_improbable() -> None:
    """Every token has probability .5: products .5, .25, .125, .. behind 1, 2, 3, .. tokens."""
    rnd, drafter = toy_round([[0], [1], [2]], 2), TableDrafter(context_free((0.5, 0.5)))
    base = Proposal.roots(rnd.roots())
    for unsure, expected in ((0.3, [2, 2, 4]), (0.2, [3, 3, 4]), (0.0, [6, 6, 6]), (1.0, [1, 1, 4])):
        limit = planned(PredictedLength(6, by_token(0.0, 1.0, 4.0), unsure), [0, 1, 2])
        assert lengths_of(drafter.propose(None, rnd, base, limit, Chain(Draw.GIVEN)).tree) == expected
    limit = planned(PredictedLength(6, by_token(0.0, 1.0, 4.0), 0.3), [0, 1, 2]).take([2, 0])
    part = rnd.take([2, 0])
    assert lengths_of(drafter.propose(None, part, base.take(torch.tensor([2, 0])), limit, Chain(Draw.GIVEN)).tree) == [
        4,
        2,
    ]


# Exactness, by enumeration of all coins.


@pytest.mark.parametrize("unsure", [None, 0.4])
def test_rejection_is_exact_when_the_last_token_decides_the_length(unsure: float | None) -> None:
    p, q = pair(2, 9)
    found = worlds(PredictedLength(2, by_token(2.0, 1.0), unsure), p, q, 2, tokens=4)
    assert joint_error(found, p, 2, 4) < 1e-12
    assert expected_accepted(found) > 0


@dataclass(frozen=True, slots=True)
class Peeking(PredictedLength):
    """Looks at the coin that will judge the second token before it decides to draft one."""

    def plan(self, state: Any, rnd: Round, load: Load) -> Limit:
        at = torch.full_like(rnd.slots, 2)
        heads = rnd.coin("accept", at, torch.full(at.shape, 0.5, dtype=torch.float64), at > 0)
        return Limit.of([1 + on for on in heads.tolist()], [2] * rnd.batch, rnd.device)


@dataclass(frozen=True, slots=True)
class Foreseeing(PredictedLength):
    """Looks at the token that is about to be drawn."""

    def plan(self, state: Any, rnd: Round, load: Load) -> Limit:
        at = torch.zeros_like(rnd.slots)[:, None]
        coming = rnd.draw(at, torch.tensor(Q).double().expand(rnd.batch, 1, -1), 1, Draw.IID, at == 0)[:, 0, 0]
        return Limit.of((coming == 2).long().tolist(), [1] * rnd.batch, rnd.device)


@pytest.mark.parametrize("rule", [Peeking, Foreseeing])
def test_control_a_length_that_depends_on_what_is_drawn_or_judged_later_biases(rule: Any) -> None:
    made = rule(2, by_token(1.0, 1.0, 1.0), needs=Needs())
    found = worlds(made, context_free(P), context_free(Q), 3, tokens=3)
    assert joint_error(found, context_free(P), 3, 3) > 0.01


def test_it_keeps_the_contract_of_controllers() -> None:
    check_controller(_Always(3, by_token(0.0)))


@dataclass(frozen=True, slots=True)
class _Always(PredictedLength):
    """Toy rounds have no features."""

    def lengths(self, rnd: Round) -> Tensor:
        return torch.arange(rnd.batch) % 3 + 1


@pytest.mark.parametrize("wrong", [{"depth": -1}, {"unsure": 1.5}, {"unsure": -0.1}])
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(wrong))} cannot be .*\nhint: "):
        PredictedLength(**{"depth": 2, "predictor": by_token(0.0), **wrong})

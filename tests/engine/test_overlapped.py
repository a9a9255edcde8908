"""The overlapped loop emits what plain decoding emits, and what is drafted ahead is used or refused as it must be."""

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from ahead import Counted, bigrams, overlapped
from draftwood.controllers.fixed import Fixed
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.proposal_checks import NOT_AHEAD
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.tree import SCORED
from draftwood.drafters.nothing import Nothing
from draftwood.engine.engine import Engine
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.ahead_drafter import AheadDrafter
from draftwood.testing.parts.tiny import tiny_decoder
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

V = 61
DECODER = tiny_decoder(2)
MODEL = CpuRunner(DECODER)
RNG = random.Random(3)
PROMPTS = [[RNG.randrange(V) for _ in range(RNG.randrange(2, 20))] for _ in range(6)]
PARAMS = [SamplingParams(temperature=0.0, seed=i, max_tokens=30) for i in range(6)]


def plain(params: Any = PARAMS) -> list[list[int]]:
    recipe = Recipe(drafter=Nothing(), policy=Chain(), verifier=Match(), controller=Fixed(0))
    return [r.output for r in serve(make_engine(MODEL, recipe), PROMPTS, params)]


def table(texts: list[list[int]]) -> torch.Tensor:
    """A draft that has read the answers, one token at a time."""
    return bigrams([[*prompt[-1:], *text] for prompt, text in zip(PROMPTS, texts, strict=True)], V)


GREEDY = plain()
TABLE = table(GREEDY)


def counts(requests: list[Request]) -> list[int]:
    return [sum(getattr(r.stats, f"rounds_{kind}") for r in requests) for kind in ("all", "some", "none")]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("siblings", [1, 3])
@pytest.mark.parametrize("rule", [Match(), Rejection()], ids=lambda rule: type(rule).__name__)
def test_greedy_text_is_that_of_plain_decoding_with_chunks_arrivals_and_preemption(rule: Any, siblings: int) -> None:
    drafter = Counted(TABLE, siblings, levels=2)
    engine = make_engine(MODEL, overlapped(drafter, rule, 2), slots=4, max_cache_tokens=110, chunk=5)
    got = serve(engine, PROMPTS, PARAMS, arrive={3: 2, 4: 5})
    assert [r.output for r in got] == GREEDY
    assert not any(r.stats.disabled for r in got) and not engine.carried
    assert drafter.adopted > 0 and sum(r.stats.preempted for r in got) > 0
    assert min(counts(got)) > 0, counts(got)


def test_sampled_text_is_that_of_plain_decoding_if_samples_are_matched() -> None:
    params = [replace(p, temperature=0.8) for p in PARAMS]
    expected = plain(params)
    drafter = Counted(table(expected), siblings=3, levels=2)
    got = serve(make_engine(MODEL, overlapped(drafter, Match(), 2)), PROMPTS, params)
    assert [r.output for r in got] == expected
    assert drafter.adopted > 0 and min(counts(got)) > 0


def test_stop_conditions_end_a_request_in_the_middle_of_what_was_drafted() -> None:
    params = [replace(p, stop_token_ids=(GREEDY[i][9 + i],)) for i, p in enumerate(PARAMS)]
    drafter = Counted(TABLE, siblings=2, levels=2)
    engine = make_engine(MODEL, overlapped(drafter, Match(), 3), slots=2)
    got = serve(engine, PROMPTS, params)
    assert [r.output for r in got] == plain(params) and {r.finish_reason for r in got} == {"stop"}
    assert drafter.adopted > 0 and not engine.carried


def test_cancelled_requests_leave_nothing_behind() -> None:
    drafter = Counted(TABLE, siblings=2, levels=2)
    engine = make_engine(MODEL, overlapped(drafter, Match(), 3), slots=3)
    got = serve(engine, PROMPTS, PARAMS, cancel={0: 3, 2: 4})
    assert [r.finish_reason for r in got] == ["cancelled", "length", "cancelled", "length", "length", "length"]
    for b in (1, 3, 4, 5):
        assert got[b].output == GREEDY[b]
    assert not engine.carried


def test_a_smaller_limit_cuts_what_was_carried() -> None:
    class Shrinking(Fixed):
        def plan(self, state: Any, rnd: Round, load: Any) -> Limit:
            depth = [3 if n % 3 else n % 2 for n in rnd.host_lengths]
            return Limit.of(depth, depth, rnd.device)

    drafter = Counted(TABLE, siblings=2, levels=3)
    recipe = replace(overlapped(drafter, Match(), 3), controller=Shrinking(3))
    got = serve(make_engine(MODEL, recipe), PROMPTS, PARAMS)
    assert [r.output for r in got] == GREEDY and not any(r.stats.disabled for r in got)
    assert drafter.adopted > 0 and max(int(x.max()) for x in drafter.bases) == 3


@dataclass(frozen=True, slots=True, eq=False)
class Broken(AheadDrafter):
    """Misbehaves when it is asked again while request 1 is scored."""

    how: str = ""

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        made = AheadDrafter.propose(self, state, rnd, base, limit, policy)
        if not rnd.in_flight or 1 not in rnd.ids:
            return made
        tree, mine = made.tree, torch.tensor([i == 1 for i in rnd.ids])[:, None]
        if self.how == "raises":
            raise RuntimeError("no")
        if self.how == "scored nodes":
            return replace(made, tree=replace(tree, role=torch.where(mine, SCORED, tree.role)))
        if self.how == "changed base":
            last = torch.arange(tree.num_nodes) == base.tree.num_nodes - 1
            return replace(
                made, tree=replace(tree, tokens=torch.where(mine & last, (tree.tokens + 1) % V, tree.tokens))
            )
        if self.how == "fewer nodes":
            return Proposal.roots(rnd.roots())
        if self.how == "ids out of range":
            return replace(made, tree=replace(tree, tokens=torch.where(mine & (tree.role > 0), V + 7, tree.tokens)))
        return replace(made, fault="it broke")


REFUSED = {
    "raises": "propose: no",
    "scored nodes": NOT_AHEAD,
    "changed base": NOT_AHEAD,
    "fewer nodes": "came back",
    "ids out of range": "a token id is out of range",
    "fault": "it broke",
}


@pytest.mark.one_in(7)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("how", REFUSED)
def test_a_drafter_that_breaks_while_the_target_scores_is_disabled_and_the_others_go_on(how: str, device: bool) -> None:
    recipe = overlapped(Broken(TABLE, 2, 2, how=how), Match(), 2)
    if device:
        with as_if_on_a_device():
            got = serve(make_engine(CudaRunner(DECODER), recipe, slots=2), PROMPTS, PARAMS)
    else:
        got = serve(make_engine(MODEL, recipe, slots=2), PROMPTS, PARAMS)
    assert [r.output for r in got] == GREEDY
    assert REFUSED[how] in (got[1].stats.disabled or "")
    assert not any(r.stats.disabled for r in got[2:])
    assert sum(counts(got[2:])[:2]) > 0


def steps(engine: Engine, params: list[SamplingParams]) -> tuple[list[Request], list[HostReads]]:
    requests = [Request(i, p, each, V) for i, (p, each) in enumerate(zip(PROMPTS, params, strict=True))]
    for request in requests:
        engine.add(request)
    rounds: list[HostReads] = []
    while engine.has_work:
        with HostReads() as reads:
            engine.step()
        rounds.append(reads)
    return requests, rounds


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("siblings", [1, 2])
@pytest.mark.parametrize("rule", [Match(), Rejection()], ids=lambda rule: type(rule).__name__)
@pytest.mark.slow
def test_a_device_is_read_once_a_round_and_gives_the_same_text(rule: Any, siblings: int, temperature: float) -> None:
    params = [replace(p, temperature=temperature) for p in PARAMS]
    q = table(plain(params))
    here, there = Counted(q, siblings, 2), Counted(q, siblings, 2)
    expected = serve(make_engine(MODEL, overlapped(here, rule, 2)), PROMPTS, params)
    with as_if_on_a_device():
        got, rounds = steps(make_engine(CudaRunner(DECODER), overlapped(there, rule, 2)), params)
    assert [r.output for r in got] == [r.output for r in expected]
    assert {reads.total for reads in rounds} == {1}, [reads.by_name for reads in rounds]
    assert there.adopted == here.adopted > 0 and counts(got) == counts(expected)
    assert not any(r.stats.disabled for r in got)


def test_time_and_passes_of_the_second_draft_are_counted_as_drafting() -> None:
    drafter = Counted(TABLE, siblings=1, levels=2)
    engine = make_engine(MODEL, overlapped(drafter, Match(), 3), slots=1)
    engine.add(Request(0, PROMPTS[0], PARAMS[0], V))
    engine.step()
    assert engine.totals.draft_passes == 3 + 3
    held, request = engine.carried[0], engine.scheduler.running[0]
    assert (held.length, held.root) == (request.num_known, request.root) and request.output == GREEDY[0][
        : len(request.output)
    ]

"""What followed the last tokens before is drafted, more of it after a longer match; tenants learn nothing of each other."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Loop, Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.retrieval.suffix import Suffix
from draftwood.errors import OptionError
from draftwood.kernels.cpu.levels import STOCK, SWITCH
from draftwood.kernels.suffix_index import PlainIndex
from draftwood.testing.contracts import Always, check_drafter, toy_round
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

POLICY = Chain(Draw.GIVEN)
MODEL = tiny_runner(2)


@pytest.fixture(params=["compiled", "plain"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setenv(SWITCH, STOCK)
    return request.param


def paths(proposal: Proposal, sequence: int = 0) -> dict[tuple[int, ...], float]:
    """Drafted paths with their scores."""
    tree = proposal.tree
    tokens = tree.path_tokens(torch.arange(tree.num_nodes).expand(tree.batch, -1))[sequence].tolist()
    each = zip(tokens, tree.live[sequence].tolist(), tree.score[sequence].tolist(), strict=True)
    return {tuple(t for t in path if t >= 0): score for path, live, score in each if live and max(path) >= 0}


def propose(drafter: Suffix, state: Any, rnd: Round, depth: int = 16, nodes: int = 16) -> Proposal:
    limit = Limit.of([depth] * rnd.batch, [nodes] * rnd.batch)
    return drafter.propose(state, rnd, Proposal.roots(rnd.roots()), limit, POLICY)


def drafted(text: list[int], depth: int = 16, nodes: int = 16, **options: Any) -> dict[tuple[int, ...], float]:
    drafter = Suffix(**options)
    return paths(propose(drafter, drafter.init(1), toy_round([text], 100), depth, nodes))


def test_a_longer_match_drafts_more(kernels: str) -> None:
    text = [1, 2, 3, 4, 5, 6]
    assert set(drafted([*text, 1])) == {(2,)}
    assert set(drafted([*text, 1, 2])) == {(3,), (3, 4)}
    assert set(drafted([*text, 1, 2], depth=1)) == set(drafted([*text, 1, 2], nodes=1)) == {(3,)}
    assert drafted([*text, 7]) == drafted([5]) == {}


def test_scores_are_logarithms_of_path_probabilities(kernels: str) -> None:
    text = [1, 2, 5, 1, 2, 5, 1, 2, 6, 1, 3, 7, 1]
    found = drafted(text, mode="tree", offset=2.0)
    assert found == pytest.approx({(2,): math.log(3 / 5), (2, 5): math.log(2 / 5), (2, 5, 1): math.log(2 / 5)})


@pytest.mark.parametrize("options", [{}, {"mode": "tree"}, {"mode": "tree", "factor": 3.0, "p_min": 0.0}, {"depth": 3}])
def test_the_contract_of_drafters_holds(kernels: str, options: dict[str, Any]) -> None:
    check_drafter(Suffix(**options), POLICY, 4)


def test_without_a_compiler_the_plain_index_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, STOCK)
    state = Suffix().init(1)
    assert isinstance(state.make(), PlainIndex) and state.answers is not None and state.answers.max_tokens == 1 << 15


def with_answer(drafter: Suffix, tenant: str, answer: list[int]) -> Any:
    """State after a request that was answered so."""
    state = drafter.init(2)
    one = Request(0, [1], SamplingParams(tenant=tenant), 100)
    drafter.admit(state, 0, one)
    one.output += answer
    one.finish("cancelled")
    drafter.free(state, [0])
    return state


ASKS = [("a", "a", True, {(8,), (8, 9)}), ("a", "b", True, {}), ("a", "", True, {}), ("a", "a", False, {})]


@pytest.mark.parametrize(("wrote", "asks", "share", "found"), ASKS)
def test_earlier_answers_draft_for_their_tenant_only(
    wrote: str, asks: str, share: bool, found: set[tuple[int, ...]], kernels: str
) -> None:
    drafter = Suffix(share=share)
    state = with_answer(drafter, wrote, [6, 7, 8, 9])
    one = Request(1, [6, 7], SamplingParams(tenant=asks), 100)
    rnd = Round(torch.tensor([0]), torch.tensor([2]), (one,))
    assert set(paths(propose(drafter, state, rnd))) == set(found)


def test_the_own_text_wins_ties() -> None:
    drafter = Suffix(offset=-1.0)
    state = with_answer(drafter, "", [6, 7, 8, 6, 7])
    one = Request(1, [6, 7, 5, 6, 7], SamplingParams(), 100)
    assert set(paths(propose(drafter, state, Round(torch.tensor([0]), torch.tensor([5]), (one,))))) == {(5,)}


def test_a_tree_that_is_there_already_is_left_alone() -> None:
    drafter, rnd = Suffix(), toy_round([[1, 2, 1]], 9)
    state, limit = drafter.init(1), Limit.of([4], [4])
    first = propose(drafter, state, rnd)
    assert drafter.propose(state, rnd, first, limit, POLICY) is first
    bare = Proposal.roots(rnd.roots())
    assert drafter.propose(state, rnd.ahead(), bare, limit, POLICY) is bare


@pytest.mark.parametrize(
    "wrong",
    [{"depth": 1}, {"mode": "forest"}, {"p_min": 1.5}, {"factor": -1.0}, {"offset": math.nan}, {"max_tokens": 0}],
    ids=str,
)
def test_a_senseless_option_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"(?s){next(iter(wrong))}.*hint:"):
        Suffix(**wrong)


# --- in an engine

PROMPTS = [([1 + i, 2, 3] * 4)[: 5 + i] for i in range(8)]


def recipe(**options: Any) -> Recipe:
    return Recipe(drafter=Suffix(**options), policy=POLICY, verifier=Match(), controller=Always(6, 8))


def params(tenant: str = "", **options: Any) -> list[SamplingParams]:
    given = {"temperature": 1.0, "max_tokens": 20, **options}
    return [SamplingParams(seed=i, tenant=tenant, **given) for i in range(8)]


def plain(each: list[SamplingParams]) -> list[list[int]]:
    nothing = Recipe(drafter=Suffix(), policy=POLICY, verifier=Match(), controller=Always(0, 0))
    return [r.output for r in serve(make_engine(MODEL, nothing), PROMPTS, each)]


def test_cancelled_and_preempted_requests_leave_no_trace_in_others() -> None:
    engine = make_engine(MODEL, recipe(max_tokens=150), slots=4, max_cache_tokens=90, chunk=4)
    done = serve(engine, PROMPTS, params(), arrive={5: 4, 6: 4}, cancel={2: 6, 7: 3})
    assert {r.stats.disabled for r in done} == {None} and sum(r.stats.preempted for r in done) > 0
    for i, (request, right) in enumerate(zip(done, plain(params()), strict=True)):
        assert request.output == (right[: len(request.output)] if i in (2, 7) else right)
    state = engine.drafter_state
    assert not state.texts and not state.answers.running, "of requests that have ended"
    written = sum(len(r.output) for r in done)
    assert state.answers.size == sum(state.answers.index("").count([t]) for t in range(61)) <= 150 < written + 50


@pytest.mark.parametrize(("tenant", "same"), [("b", True), ("a", False)])
def test_what_other_tenants_were_answered_changes_no_draft(tenant: str, same: bool) -> None:
    engine = make_engine(MODEL, recipe())
    serve(engine, PROMPTS, params("a"))
    later = serve(engine, PROMPTS, params(tenant))
    alone = serve(make_engine(MODEL, recipe()), PROMPTS, params(tenant))
    assert [r.output for r in later] == [r.output for r in alone]
    assert ([r.stats.drafted for r in later] == [r.stats.drafted for r in alone]) == same


def test_the_overlapped_loop_writes_the_same_text() -> None:
    done = serve(make_engine(MODEL, replace(recipe(), loop=Loop.OVERLAPPED)), PROMPTS, params())
    assert [r.output for r in done] == plain(params())
    assert {r.stats.disabled for r in done} == {None} and sum(r.stats.draft_tokens for r in done) > 0

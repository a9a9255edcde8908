"""The drafter of predictions: what is expected is drafted, counted, and kept apart by request."""

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
from draftwood.drafters.combine.route import Route
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.drafters.retrieval.predicted import Counts
from draftwood.drafters.retrieval.prediction import Prediction
from draftwood.drafters.retrieval.retrieved import NOTHING
from draftwood.testing.contracts import Always, check_drafter, toy_round
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

POLICY = Chain(Draw.GIVEN)
MODEL = tiny_runner(2)
V = MODEL.info.vocab_size
PROMPTS = [([1 + i, 2, 3] * 4)[: 5 + i] for i in range(8)]
SIZE = 24


def recipe(drafter: Any = None, nodes: int = 8) -> Recipe:
    drafter = Prediction() if drafter is None else drafter
    return Recipe(drafter=drafter, policy=POLICY, verifier=Match(), controller=Always(6 if nodes else 0, nodes))


def params(i: int = 0, **options: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "seed": i, "max_tokens": SIZE, **options})


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    done = serve(make_engine(MODEL, recipe(nodes=0)), PROMPTS, [params(i) for i in range(8)])
    return [r.output for r in done]


def edited(answer: list[int], i: int) -> list[int]:
    """A token replaced, two deleted, three inserted."""
    at = 5 + i % 4
    return [*answer[:at], (answer[at] + 1) % V, *answer[at + 3 : 16], 1, 2, 3, *answer[16:]]


def counts(request: Request) -> tuple[int, int]:
    return request.stats.accepted_prediction_tokens, request.stats.rejected_prediction_tokens


@pytest.mark.parametrize("given", [(), (1, 2, 3), tuple(range(4)) * 9])
def test_the_contract_of_drafters_holds(given: tuple[int, ...]) -> None:
    check_drafter(Prediction(), POLICY, 4, prediction=given)


def test_without_a_prediction_nothing_is_drafted_and_nothing_kept() -> None:
    rnd, drafter = toy_round([[1, 2, 1], [3]], 9), Prediction()
    state = drafter.init(2)
    assert drafter.retrieve(state, rnd, Limit.of([4, 4], [4, 4])) == [NOTHING, NOTHING]
    assert not state.slots


def test_a_tree_that_is_there_already_is_left_alone() -> None:
    drafter, rnd = Prediction(), toy_round([[1, 2, 1]], 9, prediction=(4, 5))
    state, limit = drafter.init(1), Limit.of([4], [4])
    bare = Proposal.roots(rnd.roots())
    first = drafter.propose(state, rnd, bare, limit, POLICY)
    assert first.tree.num_nodes == 3 and drafter.propose(state, rnd, first, limit, POLICY) is first
    assert drafter.propose(state, rnd.ahead(), bare, limit, POLICY) is bare


def test_a_request_that_takes_over_a_slot_begins_at_its_own_beginning() -> None:
    drafter, limit = Prediction(), Limit.of([4], [4])
    state = drafter.init(1)
    for i, given in enumerate([(1, 2, 3), (7, 8)]):
        one = Request(i, [1], SamplingParams(prediction=given), 9)
        rnd = Round(torch.tensor([0]), torch.tensor([1]), (one,))
        assert drafter.retrieve(state, rnd, limit)[0].tokens == list(given)


# --- in an engine


def test_the_exact_answer_takes_few_passes_and_every_token_is_counted(plain: list[list[int]]) -> None:
    each = [params(i, prediction=tuple(answer)) for i, answer in enumerate(plain)]
    done = serve(make_engine(MODEL, recipe()), PROMPTS, each)
    assert [r.output for r in done] == plain
    for request in done:
        # 6 drafted tokens and one of the target's own in each round
        assert request.stats.target_passes == 4 and request.stats.rounds_none == 0
        assert counts(request) == (SIZE - request.stats.target_passes, 0)


def test_counts_are_those_of_a_replay_of_the_rounds(plain: list[list[int]]) -> None:
    """Accepted: output tokens of a drafter. Rejected: distinct positions that no accepted token had."""
    each = [params(i, prediction=tuple(edited(answer, i))) for i, answer in enumerate(plain)]
    done = serve(make_engine(MODEL, recipe()), PROMPTS, each)
    assert [r.output for r in done] == plain
    for request in done:
        accepted, rejected = counts(request)
        assert accepted <= sum(source == 0 for source in request.sources) <= accepted + 3, "learned edits do not count"
        assert accepted > 0 and 0 < rejected <= len(request.prediction) - accepted


def test_a_count_without_the_stop_would_be_too_high(plain: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer stops inside of an accepted draft; what follows the stop is no text."""
    answer = plain[0]
    at = next(i for i in range(2, 6) if answer[i] not in answer[:i])
    stop = params(0, prediction=tuple(answer), stop_token_ids=(answer[at],))
    (done,) = serve(make_engine(MODEL, recipe()), PROMPTS[:1], [stop])
    assert done.output == answer[: at + 1] and counts(done) == (at + 1, 5 - at)
    add = Counts.add
    monkeypatch.setattr(Counts, "add", lambda self, before, drafted, kept: add(self, -99, drafted, kept))
    (wrong,) = serve(make_engine(MODEL, recipe()), PROMPTS[:1], [stop])
    assert counts(wrong) != counts(done)


def test_preempted_and_cancelled_requests_keep_their_counts_and_leave_nothing(plain: list[list[int]]) -> None:
    each = [params(i, prediction=tuple(edited(answer, i))) for i, answer in enumerate(plain)]
    engine = make_engine(MODEL, recipe(), slots=4, max_cache_tokens=90, chunk=4)
    done = serve(engine, PROMPTS, each, arrive={5: 4, 6: 4}, cancel={2: 6, 7: 3})
    assert {r.stats.disabled for r in done} == {None} and sum(r.stats.preempted for r in done) > 0
    for i, (request, right) in enumerate(zip(done, plain, strict=True)):
        assert request.output == (right[: len(request.output)] if i in (2, 7) else right)
        drafted = sum(source == 0 for source in request.sources)
        assert drafted - 3 <= counts(request)[0] <= drafted
    state = engine.drafter_state
    assert not state.slots and not state.paused


def test_in_a_route_only_what_this_drafter_found_is_counted(plain: list[list[int]]) -> None:
    for given, least in ((plain, SIZE // 2), ([[0]] * 8, 0)):
        each = [params(i, prediction=tuple(given[i]), temperature=1.0) for i in range(8)]
        routed = replace(recipe(Route((NGram(), Prediction()))), controller=Cheap(6, 8))
        done = serve(make_engine(MODEL, routed), PROMPTS, each)
        assert [r.output for r in done] == plain and {r.stats.disabled for r in done} == {None}
        assert all(counts(r)[0] >= least for r in done)
        if not least:
            assert all(counts(r)[0] <= 1 for r in done)


class Cheap(Always):
    """Limits with costs in which a node costs next to nothing."""

    def plan(self, state: None, rnd: Round, load: Any) -> Limit:
        return Limit.of([self.depth] * rnd.batch, [self.nodes] * rnd.batch, cost_model=Costs())


class Costs:
    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        return 1.0 + 1e-6 * tokens

    def draft_seconds(self, passes: int, nodes: int | None = None) -> float:
        return 0.0

    def rest_seconds(self) -> float:
        return 0.0

    def observe(self, times: Any) -> None:
        return None


def test_the_overlapped_loop_writes_the_same_text(plain: list[list[int]]) -> None:
    each = [params(i, prediction=tuple(edited(answer, i))) for i, answer in enumerate(plain)]
    done = serve(make_engine(MODEL, replace(recipe(), loop=Loop.OVERLAPPED)), PROMPTS, each)
    assert [r.output for r in done] == plain
    assert {r.stats.disabled for r in done} == {None} and all(counts(r)[0] > 0 for r in done)


def test_a_prediction_may_be_longer_than_the_context(plain: list[list[int]]) -> None:
    given = (*plain[0], *[1, 2, 3] * 1000)
    (done,) = serve(make_engine(MODEL, recipe(), capacity=64), PROMPTS[:1], [params(0, prediction=given)])
    assert done.output == plain[0] and counts(done) == (SIZE - done.stats.target_passes, 0)

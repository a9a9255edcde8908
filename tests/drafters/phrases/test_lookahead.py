"""Phrases that the target made itself are verified, its window rides along as probes, and no text changes by it."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from device_runs import ran
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Loop, Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.tree import PROBE, SCORED
from draftwood.drafters.combine.first_of import FirstOf
from draftwood.drafters.phrases import lookahead
from draftwood.drafters.phrases.lookahead import Lookahead
from draftwood.drafters.phrases.phrase_tree import merged
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.errors import DrafterError, OptionError
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.contracts import check_drafter, toy_round
from draftwood.testing.exact import Free
from draftwood.testing.parts.tiny import tiny_decoder, tiny_runner
from draftwood.testing.parts.token_pool import PoolDrafter, PoolRule
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

POLICY = Chain(Draw.GIVEN)
MODEL = tiny_runner(2)
PROMPTS = [([1 + i, 2, 3] * 4)[: 5 + i] for i in range(8)]
SMALL = Lookahead(3, 3, 2)


def recipe(drafter: Lookahead = SMALL) -> Recipe:
    return Recipe(
        drafter=PoolDrafter(drafter),
        policy=POLICY,
        verifier=PoolRule(Match()),
        controller=Fixed(drafter.depth, drafter.nodes),
    )


def params(**options: Any) -> list[SamplingParams]:
    given = {"temperature": 1.0, "max_tokens": 24, **options}
    return [SamplingParams(seed=i, **given) for i in range(8)]


def plain(each: list[SamplingParams], target: Runner = MODEL) -> list[list[int]]:
    nothing = Recipe(drafter=SMALL, policy=POLICY, verifier=Match(), controller=Fixed(0))
    return [r.output for r in serve(make_engine(target, nothing), PROMPTS, each)]


@pytest.mark.parametrize(
    "drafter", [Lookahead(2, 1, 1), Lookahead(2, 3, 2), SMALL, Lookahead(4, 2, 1, copy=False)], ids=str
)
def test_the_contract_of_drafters_holds(drafter: Lookahead) -> None:
    check_drafter(drafter, POLICY, 4)


def test_branches_that_begin_as_a_phrase_share_its_nodes() -> None:
    drafter, rnd = Lookahead(3, 2, 2), toy_round([[7, 1, 2, 7]], 9)
    state = drafter.init(1)
    own = drafter._sequence(state, 0, rnd.requests[0])
    own.window.rows = [[1], [1, 3]]
    tree = drafter.propose(state, rnd, Proposal.roots(rnd.roots()), Limit.of([4], [8]), POLICY).tree
    paths = tree.path_tokens(torch.arange(tree.num_nodes)[None])[0].tolist()
    found = {tuple(t for t in path if t >= 0): role for path, role in zip(paths, tree.role[0].tolist(), strict=True)}
    assert found == {(): SCORED, (1,): SCORED, (1, 2): SCORED, (1, 3): PROBE}


def test_newer_phrases_have_better_chances_and_no_more_than_one_together() -> None:
    found = merged([(1, 2), (3, 4), (1, 5)])
    first = [s for s, parent in zip(found.score, found.parents, strict=True) if not parent]
    assert found.tokens == [1, 2, 3, 4, 5] and found.parents == [0, 1, 0, 3, 1]
    assert first[0] > first[1] and sum(torch.tensor(first).exp()) < 1
    assert all(s <= ([0.0, *found.score])[parent] for s, parent in zip(found.score, found.parents, strict=True))


def test_without_room_for_the_window_only_phrases_are_drafted() -> None:
    rnd = toy_round([[7, 1, 2, 7]], 9)
    for limit in (Limit.of([1], [8]), Limit.of([4], [1])):
        tree = SMALL.propose(SMALL.init(1), rnd, Proposal.roots(rnd.roots()), limit, POLICY).tree
        assert tree.role[tree.live].tolist() == [SCORED, SCORED], limit


def test_the_window_learns_what_the_target_says_and_its_phrases_are_bounded() -> None:
    """A phrase of the first column begins with the token that the target emitted behind the root, in a greedy text."""
    drafter = Lookahead(3, 3, 2, copy=False)
    engine = make_engine(MODEL, recipe(drafter))
    request = Request(0, PROMPTS[0], SamplingParams(max_tokens=40), MODEL.info.vocab_size)
    engine.add(request)
    known = 0
    while engine.has_work:
        before = request.root
        own = engine.drafter_state.inner.sequences.get(0)
        full = own is not None and own.window.full
        engine.step()
        if own is not None and full and own.branches and not request.finished:
            known += 1
            assert len(own.made.newest(before, 9)) >= 1
    assert known > 5 and own is not None
    pool = own.made
    assert pool.size and all(len(each) <= 2 and all(len(p) == 2 for p in each) for each in pool.phrases.values())


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.3},
    "grammar": {"grammar": lambda tokens: torch.arange(61) % 2 == len(tokens) % 2},
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("drafter", [SMALL, Lookahead(copy=False)], ids=["small", "published"])
def test_the_text_is_that_of_plain_decoding_and_the_cache_holds_the_text(way: str, drafter: Lookahead) -> None:
    each = params(**WAYS[way])
    done = serve(make_engine(MODEL, recipe(drafter)), PROMPTS, each)
    assert [r.output for r in done] == plain(each)
    assert {r.stats.disabled for r in done} == {None}
    if way == "greedy":
        assert sum(r.stats.rounds_all + r.stats.rounds_some for r in done) > 0


def test_beside_other_drafters_it_learns_from_rounds_in_which_it_was_asked_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, judged, wrong = set[int](), list[int](), list[int]()
    propose = Lookahead.propose

    def noted(self: Lookahead, state: Any, rnd: Round, *given: Any) -> Proposal:
        asked.update(rnd.host_slots)
        return propose(self, state, rnd, *given)

    def learned(survival: Any, slot: int, *given: Any) -> None:
        judged.append(slot)
        wrong.extend({slot} - asked)

    monkeypatch.setattr(Lookahead, "propose", noted)
    monkeypatch.setattr(lookahead, "judge", learned)
    both = Recipe(
        drafter=FirstOf((NGram(n_min=1),), SMALL),
        policy=POLICY,
        verifier=Match(),
        controller=Fixed(SMALL.depth, SMALL.nodes),
        watch=(lambda rnd, outcome, output: asked.clear(),),
    )
    each = params(temperature=0.0)
    done = serve(make_engine(MODEL, both), PROMPTS, each)
    assert [r.output for r in done] == plain(each) and {r.stats.disabled for r in done} == {None}
    assert judged and not wrong


def test_cancelled_and_preempted_requests_leave_no_trace() -> None:
    engine = make_engine(MODEL, recipe(), slots=4, max_cache_tokens=100, chunk=4)
    done = serve(engine, PROMPTS, params(), arrive={5: 4, 6: 4}, cancel={2: 6, 7: 3})
    assert {r.stats.disabled for r in done} == {None} and sum(r.stats.preempted for r in done) > 0
    for i, (request, right) in enumerate(zip(done, plain(params()), strict=True)):
        assert request.output == (right[: len(request.output)] if i in (2, 7) else right)
    state = engine.drafter_state.inner
    assert not state.sequences and not any(each.shifts for each in state.survival)


def test_the_overlapped_loop_writes_the_same_text() -> None:
    done = serve(make_engine(MODEL, replace(recipe(), loop=Loop.OVERLAPPED)), PROMPTS, params())
    assert [r.output for r in done] == plain(params()) and {r.stats.disabled for r in done} == {None}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {}], ids=["greedy", "sampled"])
def test_a_device_drafts_and_writes_the_same_with_one_more_read(options: dict[str, Any]) -> None:
    """The outputs of probes are read after the verdict."""
    parts = {"policy": POLICY, "verifier": Match(), "controller": Fixed(SMALL.depth, SMALL.nodes)}
    made, model = Recipe(drafter=SMALL, **parts), tiny_decoder(2)
    here, there = (
        ran(target, lambda _: made, PROMPTS, params(**options)) for target in (CpuRunner(model), CudaRunner(model))
    )
    assert here.texts == there.texts and here.accepted == there.accepted and there.disabled == {None}
    assert {reads.total for reads in there.reads} <= {1, 2}, there.by_round()


# --- where it has to pay


class Steep(Free):
    """Every further token of a pass costs so many times as much as the first one."""

    def __init__(self, token: float) -> None:
        self.token = token

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        return 1.0 + self.token * (tokens - 1)


@pytest.mark.parametrize(("token", "scored", "probes"), [(1.0, False, False), (0.3, True, False), (0.0, True, True)])
def test_phrases_and_windows_are_in_the_pass_where_they_pay(token: float, scored: bool, probes: bool) -> None:
    drafter, rnd = replace(SMALL, worth=(0.2, 0.1)), toy_round([[7, 1, 2, 7]], 9, temperature=0.0)
    limit = Limit.of([drafter.depth], [drafter.nodes], cost_model=Steep(token))
    tree = drafter.propose(drafter.init(1), rnd, Proposal.roots(rnd.roots()), limit, POLICY).tree
    assert bool((tree.live & (tree.role == PROBE)).any()) == probes
    assert bool((tree.live & (tree.role == SCORED))[:, 1:].any()) == scored
    with pytest.raises(DrafterError, match="cost model"):
        drafter.propose(drafter.init(1), rnd, Proposal.roots(rnd.roots()), Limit.of([3], [9]), POLICY)


@pytest.mark.parametrize("wrong", [{"ngram": 1}, {"width": 0}, {"guesses": 0}], ids=str)
def test_a_senseless_option_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"(?s){next(iter(wrong))}.*hint:"):
        Lookahead(**wrong)

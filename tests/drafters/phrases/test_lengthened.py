"""Phrases behind a chain are verified with it, learned from what the target says, and never change a text."""

from typing import Any

import pytest
import torch

from device_runs import ran
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.phrases.lengthened import Lengthened
from draftwood.drafters.phrases.phrases import PhrasePool
from draftwood.errors import DrafterError, OptionError
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.contracts import check_drafter, toy_round
from draftwood.testing.exact import Free
from draftwood.testing.parts.oracle_drafter import Replay
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import random_probs
from draftwood.testing.parts.tiny import tiny_decoder, tiny_runner
from draftwood.testing.parts.token_pool import PoolDrafter, PoolRule
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

POLICY = Chain(Draw.GIVEN)
MODEL = tiny_runner(2)
V = MODEL.info.vocab_size
PROMPTS = [([1 + i, 2, 3] * 4)[: 5 + i] for i in range(8)]


def params(tenant: str = "", **options: Any) -> list[SamplingParams]:
    given = {"temperature": 1.0, "max_tokens": 24, **options}
    return [SamplingParams(seed=i, tenant=tenant, **given) for i in range(8)]


def served(drafter: Any, each: list[SamplingParams], **room: Any) -> tuple[list[Request], Any]:
    """Requests, and the drafter's state after them; in every round the entries of each slot are compared with its text."""
    parts = {"policy": POLICY, "verifier": PoolRule(Match()), "controller": Fixed(6, 12)}
    engine = make_engine(MODEL, Recipe(drafter=PoolDrafter(drafter), **parts), **room)
    return serve(engine, PROMPTS, each), engine.drafter_state.inner


def plain(each: list[SamplingParams]) -> list[list[int]]:
    nothing = Recipe(drafter=Replay({}, V), policy=POLICY, verifier=Match(), controller=Fixed(0))
    return [r.output for r in serve(make_engine(MODEL, nothing), PROMPTS, each)]


def first_layers(**options: Any) -> Lengthened:
    return Lengthened(DraftModel(MODEL.first_layers(3)), 3, 3, 2, **options)


def test_the_contract_of_drafters_holds() -> None:
    check_drafter(Lengthened(TableDrafter(random_probs(4, 3)), 2, 2, 2), POLICY, 4)


def test_the_newest_phrases_of_the_last_drafted_token_follow_it() -> None:
    drafter = Lengthened(Replay({(1, 2): [5, 6]}, 9, spoil=99), 2, 2, 2)
    state, rnd = drafter.init(1), toy_round([[1, 2]], 9)
    pool = state.book.pool("")
    last = drafter.inner.propose(None, rnd, Proposal.roots(rnd.roots()), Limit.of([2], [2]), POLICY).tree.tokens[0, -1]  # type: ignore[union-attr]
    for phrase in ((3, 4), (7, 8), (7, 1)):
        pool.add(int(last), phrase)
    tree = drafter.propose(state, rnd, Proposal.roots(rnd.roots()), Limit.of([4], [8]), POLICY).tree
    paths = tree.path_tokens(torch.arange(tree.num_nodes)[None])[0].tolist()
    leaves = {tuple(t for t in path if t >= 0)[2:] for path in paths}
    assert leaves == {(), (7,), (7, 1), (7, 8)}, "two phrases share their first node"
    cut = drafter.propose(state, rnd, Proposal.roots(rnd.roots()), Limit.of([3], [3]), POLICY).tree
    assert int(cut.live.sum()) == 4 and int(cut.depths().max()) == 3


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.3},
    "grammar": {"grammar": lambda tokens: torch.arange(61) % 2 == len(tokens) % 2},
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("way", WAYS)
def test_the_text_is_that_of_plain_decoding_and_the_cache_holds_the_text(way: str) -> None:
    each = params(**WAYS[way])
    done, _ = served(first_layers(), each)
    assert [r.output for r in done] == plain(each) and {r.stats.disabled for r in done} == {None}
    if way == "greedy":
        assert sum(r.sources.count(1) for r in done) > 0, "tokens of phrases were accepted"


def test_what_the_pool_holds_changes_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def anything(self: PhrasePool, key: int, count: int) -> list[tuple[int, ...]]:
        return [((key * 7 + i) % V, (key + 3) % V, (key * i) % V) for i in range(count)]

    monkeypatch.setattr(PhrasePool, "newest", anything)
    done, _ = served(first_layers(), params())
    assert [r.output for r in done] == plain(params()) and {r.stats.disabled for r in done} == {None}


@pytest.mark.parametrize("right", [True, False], ids=["accepted", "rejected"])
def test_used_phrases_are_corrected_in_place_whatever_happened_to_the_chain(
    right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The correction begins with what the target says behind the last drafted token."""
    each = params(temperature=0.0)
    answers = {tuple(p): text for p, text in zip(PROMPTS, plain(each), strict=True)}
    calls: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
    original = PhrasePool.correct

    def noted(self: PhrasePool, key: int, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        original(self, key, old, new)
        calls.append((key, old, new))
        assert new in self.phrases[key] and (old == new or old not in self.phrases[key])

    monkeypatch.setattr(PhrasePool, "correct", noted)
    drafter = Lengthened(Replay(answers, V, spoil=10_000 if right else 1), 2, 2, 1, copy=False)
    engine = make_engine(MODEL, Recipe(drafter=drafter, policy=POLICY, verifier=Match(), controller=Fixed(4, 4)))
    for key in range(V):
        engine.drafter_state.book.pool("").add(key, (key, (key + 1) % V))
    (request,) = serve(engine, PROMPTS[:1], each[:1])
    assert calls and all(len(new) == 2 for _, _, new in calls)
    pairs = set(zip(request.output, request.output[1:], strict=False))
    if right:  # the first token of an answer is spoilt
        assert all((key, new[0]) in pairs for key, _, new in calls[1:])
    else:
        assert request.stats.rounds_all == request.stats.rounds_some == 0


def test_pools_outlive_requests_and_belong_to_one_tenant() -> None:
    drafter = first_layers()
    engine = make_engine(
        MODEL, Recipe(drafter=drafter, policy=POLICY, verifier=Match(), controller=Fixed(6, 12)), slots=8
    )
    first = serve(engine, PROMPTS, params("a"))
    size = engine.drafter_state.book.pool("a").size
    assert size > 0 and set(engine.drafter_state.book.pools) == {"a"}
    other = serve(engine, PROMPTS, params("b"))
    assert [r.stats.drafted for r in other] == [r.stats.drafted for r in first], "as if nobody had asked before"
    again = serve(engine, PROMPTS, params("a"))
    assert [r.output for r in again] == [r.output for r in first]
    assert sum(r.stats.target_passes for r in again) < sum(r.stats.target_passes for r in first)


def test_cancelled_and_preempted_requests_leave_no_trace() -> None:
    drafter = first_layers()
    parts = {"policy": POLICY, "verifier": Match(), "controller": Fixed(6, 12)}
    engine = make_engine(MODEL, Recipe(drafter=drafter, **parts), slots=4, max_cache_tokens=80, chunk=4)
    done = serve(engine, PROMPTS, params(), arrive={5: 4, 6: 4}, cancel={2: 6, 7: 3})
    assert {r.stats.disabled for r in done} == {None} and sum(r.stats.preempted for r in done) > 0
    for i, (request, right) in enumerate(zip(done, plain(params()), strict=True)):
        assert request.output == (right[: len(request.output)] if i in (2, 7) else right)
    assert not engine.drafter_state.drafts and not engine.drafter_state.inner.owner


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {}], ids=["greedy", "sampled"])
def test_a_device_drafts_and_writes_the_same_with_two_more_reads(options: dict[str, Any]) -> None:
    """The last drafted token before the pass, and the outputs of all nodes after the verdict."""
    model = tiny_decoder(2)
    targets = CpuRunner(model), CudaRunner(model)

    def build(target: Any) -> Recipe:
        drafter = Lengthened(DraftModel(target.first_layers(3)), 3, 3, 2)
        return Recipe(drafter=drafter, policy=POLICY, verifier=Match(), controller=Fixed(6, 9))

    here, there = (ran(target, build, PROMPTS[:3], params(**options)[:3]) for target in targets)
    assert here.texts == there.texts and there.disabled == {None}
    assert {reads.total for reads in there.reads} <= {1, 3}, there.by_round()


@pytest.mark.parametrize("pays", [True, False])
def test_phrases_follow_where_they_pay(pays: bool) -> None:
    class Steep(Free):
        def pass_seconds(self, tokens: int, context: int = 0) -> float:
            return 1.0 if pays else float(tokens)

    drafter = Lengthened(Replay({(1, 2): [5, 6]}, 9, spoil=99), 2, 2, 2, priced=True)
    state, rnd = drafter.init(1), toy_round([[1, 2]], 9)
    for key in range(9):
        state.book.pool("").add(key, (3, 4))
    limit = Limit.of([4], [8], cost_model=Steep())
    tree = drafter.propose(state, rnd, Proposal.roots(rnd.roots()), limit, POLICY).tree
    assert int(tree.live.sum()) == (5 if pays else 3)
    with pytest.raises(DrafterError, match="cost model"):
        drafter.propose(drafter.init(1), rnd, Proposal.roots(rnd.roots()), Limit.of([4], [8]), POLICY)


@pytest.mark.parametrize("wrong", [{"length": 0}, {"phrase": 0}, {"count": 0}], ids=str)
def test_a_senseless_option_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"(?s){next(iter(wrong))}.*hint:"):
        Lengthened(Replay({}, 9), **wrong)

"""The engine emits what plain decoding emits, whichever requests join, leave or are preempted."""

import random
from dataclasses import replace
from time import sleep
from typing import Any

import pytest
import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.config import EngineConfig
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.engine import drafting
from draftwood.engine.engine import Engine
from draftwood.errors import EngineError, OptionError
from draftwood.recipes import autoregressive
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.parts.oracle_drafter import NoisyOracle
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

V = 61
KNOWN: dict[tuple[CpuRunner, str], tuple[int, ...]] = {}


@pytest.fixture(scope="module")
def model() -> CpuRunner:
    return tiny_runner(1)


def prompts(count: int = 8, seed: int = 0) -> list[list[int]]:
    """Ragged, and repetitive enough for copying to find something."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        phrase = [rng.randrange(V) for _ in range(rng.randrange(3, 9))]
        texts.append((phrase * 5)[: rng.randrange(4, 40)])
    return texts


def plain() -> Recipe:
    return Recipe(drafter=Nothing(), policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(0))


def with_drafter(drafter: Any, depth: int = 4, nodes: int = 8, verifier: Any = None, draw: Draw = Draw.GIVEN) -> Recipe:
    return Recipe(drafter=drafter, policy=Chain(draw), verifier=verifier or Match(), controller=Fixed(depth, nodes))


def small_model(model: CpuRunner) -> DraftModel:
    return DraftModel(model.first_layers(3))


def sampled(count: int, **options: Any) -> list[SamplingParams]:
    return [SamplingParams(**{"temperature": 1.0, "seed": 10 + i, "max_tokens": 24, **options}) for i in range(count)]


def answers(model: CpuRunner, texts: list[list[int]], params: list[SamplingParams]) -> list[list[int]]:
    """Plain decoding, one request at a time in an engine of its own. Many tests ask for the same: each is decoded once."""
    found: list[list[int]] = []
    for text, p in zip(texts, params, strict=True):
        key = (model, f"{text} {p}")
        if key not in KNOWN:
            KNOWN[key] = tuple(serve(make_engine(model, plain()), [text], [p])[0].output)
        found.append(list(KNOWN[key]))
    return found


def oracle(model: CpuRunner, texts: list[list[int]], params: list[SamplingParams], right: float = 0.7) -> NoisyOracle:
    known = answers(model, texts, params)
    return NoisyOracle({tuple(t): a for t, a in zip(texts, known, strict=True)}, V, right)


def store(engine: Engine, name: str) -> torch.Tensor:
    """The entries of a cache, of all slots."""
    assert isinstance(engine.runner, CpuRunner)
    return engine.runner.cache.store(name)


def counts(requests: list[Request]) -> tuple[int, int, int]:
    return tuple(sum(getattr(r.stats, f"rounds_{k}") for r in requests) for k in ("all", "some", "none"))  # type: ignore[return-value]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        ("oracle", 1.0),
        ("ngram", 0.0),
        ("small model", 1.0),
        pytest.param("oracle", 0.0, marks=pytest.mark.slow),
        pytest.param("ngram", 1.0, marks=pytest.mark.slow),
        pytest.param("small model", 0.0, marks=pytest.mark.slow),
    ],
)
def test_a_ragged_batch_with_arrivals_and_preemption_equals_each_request_alone(
    model: CpuRunner, name: str, temperature: float
) -> None:
    texts, params = prompts(), sampled(8, temperature=temperature)
    wanted = answers(model, texts, params)
    drafter = {"oracle": oracle(model, texts, params), "ngram": NGram(n_min=1), "small model": small_model(model)}[name]
    engine = make_engine(model, with_drafter(drafter), slots=5, max_cache_tokens=150, chunk=16)
    arrive = {i: 2 * i for i in range(8)}
    got = serve(engine, texts, params, arrive=arrive)
    assert [r.output for r in got] == wanted
    assert all(r.stats.disabled is None for r in got)
    assert sum(r.stats.preempted for r in got) > 0, "the cache is meant to be too small"
    if name == "oracle":
        assert min(counts(got)) >= 5, "rounds that accept all, some and none must all occur"
    else:
        assert sum(counts(got)) > 0


@pytest.mark.parametrize("limit", ["max_draft_depth", "max_draft_nodes", "max_draft_tokens"])
def test_a_request_that_limits_its_drafts_writes_the_same_with_fewer(model: CpuRunner, limit: str) -> None:
    texts, params = prompts(4), sampled(4)
    wanted = answers(model, texts, params)
    drafter = oracle(model, texts, params)
    free = serve(make_engine(model, with_drafter(drafter), slots=4), texts, params)
    limits = [0, 1, 2, 3]
    limited = [replace(each, **{limit: most}) for each, most in zip(params, limits, strict=True)]
    got = serve(make_engine(model, with_drafter(drafter), slots=4), texts, limited)
    assert [r.output for r in got] == wanted
    for request, other, most in zip(got, free, limits, strict=True):
        assert request.stats.draft_tokens < other.stats.draft_tokens
        if limit == "max_draft_depth":
            assert len(request.stats.drafted) <= most
        else:
            assert request.stats.draft_tokens <= most * (
                1 if limit == "max_draft_tokens" else request.stats.target_passes
            )


def test_requests_that_leave_do_not_touch_those_that_stay(model: CpuRunner) -> None:
    texts, params = prompts(), sampled(8)
    wanted = answers(model, texts, params)
    drafter = oracle(model, texts, params)
    engine = make_engine(model, with_drafter(drafter), slots=4)
    got = serve(engine, texts, params, cancel={0: 2, 5: 3, 6: 6})
    for i, (request, text) in enumerate(zip(got, wanted, strict=True)):
        if i in (0, 5, 6):
            assert request.finish_reason == "cancelled" and request.output == text[: len(request.output)]
        else:
            assert request.output == text
    engine.runner.check_integrity()


def test_equality_has_teeth(model: CpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: commit the accepted entries in the wrong places, and the texts differ."""
    texts, params = prompts(), sampled(8)
    wanted, drafter = answers(model, texts, params), oracle(model, texts, params)
    from draftwood.engine import step

    real = step._kept

    def misplaced(*given: Any) -> Any:
        kept, tokens = real(*given)
        return [list(range(len(entries))) for entries in kept], tokens

    monkeypatch.setattr(step, "_kept", misplaced)
    got = serve(make_engine(model, with_drafter(drafter)), texts, params)
    assert [r.output for r in got] != wanted


OPTIONS: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "min_p": {"min_p": 0.2},
    "top_k and top_p": {"top_k": 12, "top_p": 0.8},
    "bias and bad words": {"logit_bias": {3: 4.0, 7: -5.0}, "bad_words": ((3, 3), (9,))},
    "min tokens": {"min_tokens": 10, "stop_token_ids": tuple(range(20))},
    "greedy with penalties": {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
}


def option_cases() -> list[Any]:
    """All in float64. What an option does is no matter of arithmetic, so the fast tests have one in float32, the slow ones
    the others."""
    whole = [pytest.param(options, torch.float64, 1e-10, id=f"{name}-float64") for name, options in OPTIONS.items()]
    return whole + [
        pytest.param(
            options, torch.float32, 1e-4, id=f"{name}-float32", marks=() if "top_p" in options else pytest.mark.slow
        )
        for name, options in OPTIONS.items()
    ]


@pytest.mark.parametrize(("options", "dtype", "error"), option_cases())
@pytest.mark.slow
def test_options_and_logprobs_under_speculation_equal_plain_decoding(
    options: dict[str, Any], dtype: torch.dtype, error: float
) -> None:
    model = tiny_runner(1, dtype=dtype)
    texts, params = prompts(), sampled(8, logprobs=5, **options)
    alone = [serve(make_engine(model, plain()), [t], [p])[0] for t, p in zip(texts, params, strict=True)]
    known = {tuple(t): r.output for t, r in zip(texts, alone, strict=True)}
    engine = make_engine(model, with_drafter(NoisyOracle(known, V, 0.8)), slots=4)
    for fast, slow in zip(serve(engine, texts, params), alone, strict=True):
        assert fast.output == slow.output and fast.finish_reason == slow.finish_reason
        assert len(fast.logprobs) == len(fast.output)
        for (a, best_a), (b, best_b) in zip(fast.logprobs, slow.logprobs, strict=True):
            assert a == pytest.approx(b, abs=error)
            assert [t for t, _ in best_a] == [t for t, _ in best_b]
            assert [x for _, x in best_a] == pytest.approx([x for _, x in best_b], abs=error)
        assert fast.stats.rounds_all + fast.stats.rounds_some > 0 or len(fast.output) < 3


def test_the_cache_after_a_tree_commit_is_a_fresh_prefill(model: CpuRunner) -> None:
    texts, params = prompts(4), sampled(4, max_tokens=12)
    engine = make_engine(model, with_drafter(oracle(model, texts, params)), slots=4)
    requests = [Request(i, t, p, V) for i, (t, p) in enumerate(zip(texts, params, strict=True))]
    for request in requests:
        engine.add(request)
    for _ in range(3):
        engine.step()
    for slot, request in engine.scheduler.running.items():
        length = engine.runner.length(slot)
        fresh = make_engine(model, plain())
        fresh.add(Request(0, [*request.known[:length], 0], SamplingParams(max_tokens=2), V))
        fresh.step()
        for spec in model.model.cache_specs:
            have, want = store(engine, spec.name)[slot, :, :length], store(fresh, spec.name)[0, :, :length]
            assert torch.allclose(have, want, atol=1e-11), f"{spec.name} of slot {slot}"


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_a_prompt_in_chunks_is_the_same_prompt(model: CpuRunner, chunk: int) -> None:
    texts, params = prompts(4), sampled(4)
    got = serve(make_engine(model, plain(), chunk=chunk), texts, params)
    assert [r.output for r in got] == answers(model, texts, params)


def test_a_text_that_is_still_in_the_cache_is_not_computed_again(model: CpuRunner) -> None:
    engine = make_engine(model, plain(), slots=2)
    (first,) = serve(engine, [[1, 2, 3, 4, 5]], sampled(1, max_tokens=6))
    longer = [*first.known, 9, 9]
    (second,) = serve(engine, [longer], sampled(1))
    assert second.stats.cached_tokens >= len(first.known) - 1
    assert second.output == answers(model, [longer], sampled(1))[0]


class Broken:
    """A drafter that misbehaves in one way, from its third call on."""

    def __init__(self, inner: Any, how: str) -> None:
        self.inner, self.how, self.calls = inner, how, 0
        self.needs, self.draws = inner.needs, inner.draws

    def init(self, slots: int) -> Any:
        return self.inner.init(slots)

    def admit(self, *a: Any) -> int:
        return self.inner.admit(*a)

    def begin(self, *a: Any) -> None:
        if self.how == "begin raises":
            raise RuntimeError("no")
        self.inner.begin(*a)

    def free(self, *a: Any) -> None:
        if self.how == "free raises":
            raise RuntimeError("no")
        self.inner.free(*a)

    def commit(self, *a: Any) -> None:
        self.calls += 1
        if self.how == "commit raises" and self.calls > 2:
            raise RuntimeError("no")
        self.inner.commit(*a)

    def propose(self, *a: Any) -> Any:
        proposal = self.inner.propose(*a)
        if self.calls < 2 or proposal.tree.num_nodes < 2:
            return proposal
        tree = proposal.tree
        bad = tree.tokens.clone()
        if self.how == "propose raises":
            raise RuntimeError("no")
        if self.how == "ids out of range in one sequence":
            victim = torch.tensor([r.id == 0 for r in a[1].requests])
            bad[:, 1] = torch.where(victim, V + 5, bad[:, 1])
            return replace(proposal, tree=replace(tree, tokens=bad))
        if self.how == "wrong shapes":
            return replace(proposal, tree=replace(tree, tokens=bad[:, :-1]))
        if self.how == "another root":
            bad[:, 0] = (bad[:, 0] + 1) % V
            return replace(proposal, tree=replace(tree, tokens=bad))
        if self.how == "children before parents":
            return replace(proposal, tree=replace(tree, parents=torch.full_like(tree.parents, tree.num_nodes - 1)))
        if self.how == "not a proposal":
            return None
        if self.how == "NaN distributions":
            assert proposal.q is not None
            return replace(proposal, q=type(proposal.q)(proposal.q.prob * float("nan")))
        return proposal


@pytest.mark.one_in(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "how",
    [
        "begin raises",
        "propose raises",
        "commit raises",
        "free raises",
        "ids out of range in one sequence",
        "wrong shapes",
        "another root",
        "children before parents",
        "not a proposal",
        "NaN distributions",
    ],
)
def test_a_broken_drafter_is_disabled_and_the_requests_go_on(model: CpuRunner, how: str) -> None:
    texts, params = prompts(4), sampled(4)
    wanted = answers(model, texts, params)
    inner = small_model(model) if how == "NaN distributions" else oracle(model, texts, params)
    verifier, draw = (Match(), Draw.IID) if how == "NaN distributions" else (Match(), Draw.GIVEN)
    engine = make_engine(model, with_drafter(Broken(inner, how), verifier=verifier, draw=draw), slots=2)
    got = serve(engine, texts, params)
    assert [r.output for r in got] == wanted
    disabled = [r.stats.disabled for r in got]
    if how == "ids out of range in one sequence":
        assert [bool(b) for b in disabled] == [True, False, False, False]
    elif how != "free raises":
        assert all(disabled) or how == "begin raises"
    engine.runner.check_integrity()


@pytest.mark.parametrize(("seconds", "disabled"), [(0.2, True), (0.0, False)])
def test_a_drafter_far_slower_than_the_target_is_disabled_with_the_reason(
    model: CpuRunner, seconds: float, disabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "SLOW", 2)  # the pass of a tiny model takes long while others use the machine
    texts, params = prompts(2), sampled(2)
    wanted = answers(model, texts, params)

    class Slow(NoisyOracle):
        def propose(self, *args: Any) -> Any:
            sleep(seconds)
            return NoisyOracle.propose(self, *args)

    known = oracle(model, texts, params)
    slow = with_drafter(Slow(known.answers, V))
    got = serve(make_engine(model, slow, slots=2, disable_slow_drafts=True), texts, params)
    assert [r.output for r in got] == wanted
    reasons = [r.stats.disabled for r in got]
    assert [why is not None and "more than 2 times the target's pass" in why for why in reasons] == [disabled] * 2
    if disabled:
        assert all(r.stats.drafted[0] < r.stats.target_passes for r in got), "the rest is undrafted"


def test_options_that_leave_no_token_end_that_request_alone(model: CpuRunner) -> None:
    params = sampled(2)
    nothing = SamplingParams(temperature=1.0, grammar=lambda tokens: torch.zeros(V).bool())
    got = serve(make_engine(model, plain()), prompts(3), [params[0], nothing, params[1]])
    assert got[1].finish_reason == "error" and "no token is left" in str(got[1].error)
    assert got[0].finish_reason == got[2].finish_reason == "length"


def test_a_full_context_ends_the_answer_with_length(model: CpuRunner) -> None:
    engine = make_engine(model, with_drafter(NGram(n_min=1)), capacity=30)
    (got,) = serve(engine, [[1, 2] * 5], [SamplingParams(max_tokens=200)])
    assert (got.finish_reason, got.finish_detail) == ("length", "context")
    assert got.num_known == 31, "the last token needs no cache entry of its own"


def test_the_last_request_alone_in_a_full_cache_ends_with_length(model: CpuRunner) -> None:
    engine = make_engine(model, plain(), slots=2, max_cache_tokens=20)
    got = serve(engine, [[1, 2, 3]] * 2, SamplingParams(max_tokens=100))
    assert {(r.finish_reason, r.finish_detail) for r in got} == {("length", "context")}
    assert max(r.num_known for r in got) >= 20


def test_bad_requests_are_refused_at_the_door(model: CpuRunner) -> None:
    engine = make_engine(model, plain(), capacity=20)
    for prompt, word in (([], "empty"), ([1] * 20, "20 tokens"), ([V], "vocabulary"), ([-1], "vocabulary")):
        with pytest.raises(OptionError, match=word):
            engine.add(Request(0, prompt, SamplingParams(), V))
    with pytest.raises(OptionError, match="vocabulary"):
        engine.add(Request(0, [1], SamplingParams(stop_token_ids=(V,)), V))
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.add(Request(0, [1], SamplingParams(), V))


def test_a_crowd_is_refused_not_lost(model: CpuRunner) -> None:
    from draftwood.testing.exact import Free

    config = EngineConfig(max_num_seqs=1, max_num_waiting=2)
    engine = Engine(model.open(1, 64), plain(), cost_model=Free(), config=config)
    requests = [Request(i, [1, 2], SamplingParams(max_tokens=3), V) for i in range(4)]
    engine.add(requests[0])
    engine.add(requests[1])
    with pytest.raises(OptionError, match="waiting"):
        engine.add(requests[2])
    while engine.has_work:
        engine.step()
    assert requests[0].finished and requests[1].finished


def test_failed_round_ends_its_requests_and_closes_the_engine(model: CpuRunner) -> None:
    def fail(*given: Any, **more: Any) -> Any:
        raise MemoryError("no room")

    engine, request = make_engine(model, plain()), Request(0, [1, 2], SamplingParams(), V)
    engine.runner.execute = fail  # type: ignore[method-assign]
    engine.add(request)
    with pytest.raises(MemoryError):
        engine.step()
    assert (request.finish_reason, request.error) == ("error", "a round failed: MemoryError: no room")
    assert engine.closed and not engine.has_work and not engine.scheduler.running
    with pytest.raises(EngineError, match="closed"):
        engine.add(Request(1, [1, 2], SamplingParams(), V))


def test_draws_without_a_seed_differ_and_their_seeds_repeat_them(model: CpuRunner) -> None:
    free = SamplingParams(temperature=1.0, max_tokens=12)
    first, second = serve(make_engine(model, plain()), [[1, 2, 3]] * 2, free)
    assert first.output != second.output and first.seed != second.seed
    (again,) = serve(make_engine(model, plain()), [[1, 2, 3]], replace(free, seed=second.seed))
    assert again.output == second.output


def test_features_of_the_position_that_produced_each_root_are_handed_on(model: CpuRunner) -> None:
    seen: list[tuple[list[int], torch.Tensor]] = []

    class Curious(NGram):
        def propose(self, state: Any, rnd: Any, base: Any, limit: Any, policy: Any) -> Any:
            if rnd.origin:
                seen.append((rnd.requests[0].known, rnd.origin[4][0]))
            return NGram.propose(self, state, rnd, base, limit, policy)

    from draftwood.core.forward import Needs

    recipe = with_drafter(Curious(n_min=1, needs=Needs(origin=frozenset({4}))))
    serve(make_engine(model, recipe), [prompts(1)[0]], sampled(1))
    assert len(seen) > 5
    told = len(seen)
    serve(make_engine(model, with_drafter(Curious(n_min=1, needs=Needs(taps=frozenset({4}))))), [[1, 2]], sampled(1))
    assert len(seen) == told, "not asked for, not computed"
    from draftwood.core.proposal import Proposal
    from draftwood.core.score import KnownTokens, score
    from draftwood.testing.contracts import toy_round

    for known, feature in seen[:6]:
        runner = model.open(1, 64)
        runner.admit(0, known)
        rnd = toy_round([known[:-1]], V)
        chain, roots = KnownTokens(0, 0, known[:-1]), Proposal.roots(rnd.roots())
        scored = score(runner, [chain], roots, rnd, taps=frozenset({4}))
        assert torch.allclose(scored.feature(4, torch.zeros(1, 1, dtype=torch.int64))[0, 0], feature, atol=1e-11)


def test_watchers_see_every_round(model: CpuRunner) -> None:
    seen: list[int] = []
    recipe = replace(plain(), watch=(lambda rnd, outcome, what: seen.append(rnd.batch),))
    serve(make_engine(model, recipe), prompts(2), sampled(2, max_tokens=5))
    assert seen == [2] * 5


@pytest.mark.slow
def test_rejection_runs_in_ragged_batches_with_a_real_small_model(model: CpuRunner) -> None:
    texts = prompts()
    recipe = with_drafter(small_model(model), verifier=Rejection(), draw=Draw.IID)
    together = serve(make_engine(model, recipe, slots=3), texts, sampled(8))
    alone = [serve(make_engine(model, recipe), [t], [p])[0] for t, p in zip(texts, sampled(8), strict=True)]
    assert [r.output for r in together] == [r.output for r in alone], "coins are keyed, so the batch does not matter"
    assert min(counts(together)) > 0


def test_a_grammar_is_never_asked_what_follows_an_end(model: CpuRunner) -> None:
    end = 7

    def grammar(tokens: Any) -> torch.Tensor:
        assert end not in tokens, "asked about text after the end"
        allowed = torch.ones(V).bool() if len(tokens) < 3 else torch.arange(V) == end
        return allowed & (torch.arange(V) != end) if len(tokens) < 3 else allowed

    params = SamplingParams(max_tokens=8, grammar=grammar)
    (slow,) = serve(make_engine(model, plain()), [[1, 2, 3]], params, eos=(end,))
    known = {(1, 2, 3): [*slow.output, end, end, end]}
    for drafter in (NoisyOracle(known, V, 1.0), small_model(model)):
        (fast,) = serve(make_engine(model, with_drafter(drafter, 5, 20)), [[1, 2, 3]], params, eos=(end,))
        assert (fast.output, fast.finish_reason, fast.stats.disabled) == (slow.output, "stop", None)


def test_a_dead_end_is_reached_with_the_same_tokens(model: CpuRunner) -> None:
    params = SamplingParams(max_tokens=8, grammar=lambda tokens: torch.full((V,), len(tokens) < 3))
    (slow,) = serve(make_engine(model, plain()), [[1, 2, 3]], params)
    assert slow.finish_reason == "error" and len(slow.output) == 3
    recipe = with_drafter(NoisyOracle({(1, 2, 3): [*slow.output, 1, 1]}, V, 1.0), 5, 20)
    (fast,) = serve(make_engine(model, recipe), [[1, 2, 3]], params)
    assert (fast.output, fast.finish_reason) == (slow.output, "error")


def test_a_grammar_that_breaks_ends_its_own_request_and_no_other(model: CpuRunner) -> None:
    def broken(tokens: Any) -> torch.Tensor:
        if len(tokens) == 2:
            raise KeyError("lost")
        return torch.ones(V).bool()

    texts, params = prompts(3), sampled(3)
    wanted = answers(model, texts, params)
    params[1] = SamplingParams(temperature=1.0, seed=1, grammar=broken)
    for drafter in (Nothing(), small_model(model)):
        got = serve(make_engine(model, with_drafter(drafter)), texts, params)
        assert got[1].finish_reason == "error" and "KeyError" in str(got[1].error) and len(got[1].output) == 2
        assert [got[0].output, got[2].output] == [wanted[0], wanted[2]]
        assert not any(r.stats.disabled for r in got), "it was not the drafter's fault"


@pytest.mark.parametrize("temperature", [1e-7, 1e-38, 1e-300, 1e6])
def test_extreme_temperatures_are_just_temperatures(model: CpuRunner, temperature: float) -> None:
    got = serve(make_engine(model, plain()), prompts(2), sampled(2, temperature=temperature))
    assert all(len(r.output) == 24 for r in got)
    if temperature < 1:
        assert [r.output for r in got] == answers(model, prompts(2), sampled(2, temperature=0.0))


def test_drafter_with_scores_of_another_precision_drafts_for_some_of_the_batch(model: CpuRunner) -> None:
    class Double(NGram):
        def propose(self, *given: Any) -> Any:
            made = NGram.propose(self, *given)
            return replace(made, tree=replace(made.tree, score=made.tree.score.double()))

    params = [SamplingParams(max_tokens=12), SamplingParams(max_tokens=1)]  # the second one has no room for a draft
    requests = [Request(i, prompts(1)[0], p, V) for i, p in enumerate(params)]
    engine = make_engine(model, with_drafter(Double(n_min=1)))
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
    (wanted,) = serve(make_engine(model, plain()), prompts(1), params[0])
    assert requests[0].output == wanted.output and requests[0].stats.disabled is None


def test_prefixes_are_shared_within_a_tenant_only() -> None:
    model = tiny_runner()
    engine = make_engine(model, autoregressive.build(model), slots=2)
    prompt = [*range(1, 30)]
    cached: list[int] = []
    for i, tenant in enumerate(("a", "b", "b")):
        request = Request(i, prompt, SamplingParams(max_tokens=1, tenant=tenant), model.info.vocab_size)
        engine.add(request)
        while engine.has_work:
            engine.step()
        cached.append(request.stats.cached_tokens)
    assert cached == [0, 0, 28]

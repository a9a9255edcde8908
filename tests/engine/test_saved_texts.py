"""Requests that share blocks of a small cache, and are preempted in between, say what each of them says alone in a cache of
its own."""

import random
from collections import Counter
from dataclasses import replace
from functools import cache as remembered
from typing import Any

import pytest

from draftwood import recipes
from draftwood.cache.block_cache import BlockCache
from draftwood.cache.dense import DenseCache
from draftwood.controllers.fixed import Fixed
from draftwood.core.batch import Prefix
from draftwood.core.config import EngineConfig
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.nets.make_drafter import feature_drafter
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.engine.engine import Engine
from draftwood.engine.shortest_first import ShortestFirst
from draftwood.errors import EngineError, OptionError
from draftwood.models.backends import int8_weights
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.models.loading.load import Loaded, load
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.open import runner_of
from draftwood.testing.exact import Free
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from native_levels import BEST, kept_weights, opened

SYSTEM = random.Random(1).choices(range(61), k=70)
SHARED = 128  # tokens of the same prompt that three requests have


@remembered
def model() -> NativeDecoder:
    return NativeDecoder(CONFIG, int8_weights.from_tensors(CONFIG, kept_weights(CONFIG)), opened(BEST))


def plain() -> Recipe:
    return Recipe(drafter=Nothing(), policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(0, 1))


def recipe(name: str) -> Recipe:
    """`head`: entries of its own for pairs of features and tokens; `draft model`: entries of its own for tokens."""
    drafter: Any = {
        "head": lambda: feature_drafter(random_head("eagle3", CpuRunner(model()), rows=37), CpuRunner(model())),
        "lookup": lambda: NGram(n_min=1, n_max=3, branches=2),
        "draft model": lambda: DraftModel(CpuRunner(model()).first_layers(3)),
        "plain": Nothing,
    }[name]()
    policy = Chain(Draw.GIVEN) if name == "lookup" else Static((3, 2, 1), draw=Draw.GIVEN)
    return Recipe(drafter=drafter, policy=policy, verifier=Match(), controller=Fixed(depth=3, nodes=16))


def prompts() -> list[list[int]]:
    """Twelve of ragged lengths: most begin alike, three are the same."""
    rng = random.Random(2)
    own = [[*SYSTEM, *rng.choices(range(61), k=rng.choice([1, 9, 25]))] for _ in range(7)]
    same = [*SYSTEM, *rng.choices(range(61), k=SHARED - len(SYSTEM))]
    return [*own, rng.choices(range(61), k=40), same, same, same, [*own[0], 3, 4]]


def params(i: int) -> SamplingParams:
    """Greedy and sampled ones; every other one says few different tokens, so that its text repeats."""
    bias = dict.fromkeys(range(3, 61), -100.0) if i % 2 else {}
    return SamplingParams(max_tokens=36 + i, temperature=float(i % 3 > 0), seed=i, logit_bias=bias)


@remembered
def alone() -> tuple[tuple[int, ...], ...]:
    """Each request without drafts, in a dense cache of its own."""
    found: list[tuple[int, ...]] = []
    for i, prompt in enumerate(prompts()):
        made = model()
        runner = CpuRunner(made, made.info, DenseCache(made.cache_specs, slots=1, capacity=256))
        engine = Engine(runner, plain(), cost_model=Free(), config=EngineConfig(max_num_seqs=1))
        request = Request(0, prompt, params(i), 61)
        engine.add(request)
        while engine.has_work:
            engine.step()
        found.append(tuple(request.output))
    return tuple(found)


def own_caches(engine: Engine) -> list[BlockCache]:
    """Of the target, and of the drafter if it has one."""
    runners: list[Any] = [engine.runner, getattr(engine.drafter_state, "runner", None)]
    return [r.cache for r in runners if r is not None]


def together(
    name: str,
    *,
    max_saved_tokens: int | None = None,
    max_cache_tokens: int = 192,
    slots: int = 8,
    scheduler: Any = None,
    arrive: int = 1,
) -> tuple[list[Request], Engine]:
    """All of them at once, a new one every few rounds; the counts of all caches are checked after every round."""
    own = recipe(name)
    own = replace(own, scheduler=scheduler)
    runner = CpuRunner(model()).open(slots, 256, max_cache_tokens, own.needs.pools)
    config = EngineConfig(max_num_seqs=slots, max_saved_tokens=max_saved_tokens, disable_slow_drafts=False)
    engine = Engine(runner, own, cost_model=Free(), config=config)
    requests = [Request(i, prompt, params(i), 61) for i, prompt in enumerate(prompts())]
    waiting, turn = list(requests), 0
    while waiting or engine.has_work:
        if waiting and turn % arrive == 0:
            engine.add(waiting.pop(0))
        engine.step()
        for cache in own_caches(engine):
            cache.check_integrity()
        turn += 1
    return requests, engine


@pytest.mark.parametrize("copies", [0, None], ids=["read again", "copied"])
@pytest.mark.parametrize("name", ["plain", "lookup", "head", "draft model"])
def test_each_request_says_what_it_says_alone(name: str, copies: int | None) -> None:
    requests, engine = together(name, max_saved_tokens=copies)
    assert [tuple(r.output) for r in requests] == list(alone())
    assert not any(r.stats.disabled for r in requests)
    assert sum(r.stats.preempted for r in requests) > 0, "the cache was large enough for all"
    assert (engine.saved_texts.restored > 0) == (copies is None)
    assert not engine.saved_texts.held
    if name != "plain":
        rounds = Counter[str]()
        for r in requests:
            for kind in ("rounds_all", "rounds_some", "rounds_none"):
                rounds[kind] += getattr(r.stats, kind)
        assert min(rounds[kind] for kind in ("rounds_all", "rounds_some", "rounds_none")) > 0, rounds
    assert all(len(c.blocks.free) + len(c.blocks.tree.idle) == len(c.blocks.refs) for c in own_caches(engine))


def test_also_where_shorter_requests_take_the_slots_of_longer_ones() -> None:
    requests, _ = together("head", slots=2, scheduler=ShortestFirst, arrive=9)
    assert [tuple(r.output) for r in requests] == list(alone())


def test_entries_of_another_place_change_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a block that is copied at an admission keeps what it held before."""
    real = BlockCache._start_from

    def wrong(self: BlockCache, slot: int, source: int, entries: int) -> bool:
        if not real(self, slot, source, entries):
            return False
        at = int(self.blocks.rows[slot, self.blocks.counts[slot] - 1]) * 32
        for joined in self._joined.values():
            joined[:, :, at : at + entries] *= -4
        return True

    monkeypatch.setattr(BlockCache, "_start_from", wrong)
    requests, _ = together("plain")
    assert [tuple(r.output) for r in requests] != list(alone())


def test_copies_of_another_text_change_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of copies."""
    real = BlockCache.save

    def wrong(self: BlockCache, slot: int) -> Any:
        found = real(self, slot)
        for store in found.stores:
            store.mul_(-4)
        return found

    monkeypatch.setattr(BlockCache, "save", wrong)
    requests, engine = together("plain")
    assert engine.saved_texts.restored > 0
    assert [tuple(r.output) for r in requests] != list(alone())


def test_a_block_that_nobody_gives_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the checks after every round."""
    monkeypatch.setattr("draftwood.cache.blocks.Blocks._drop", lambda self, block: None)
    with pytest.raises(EngineError):
        together("plain")


def test_choices_of_one_prompt_read_it_once() -> None:
    """They come together, before any of them has read it."""
    prompt = prompts()[8]
    runner = CpuRunner(model()).open(4, 256)
    engine = Engine(runner, recipe("head"), cost_model=Free(), config=EngineConfig(max_num_seqs=4))
    requests = [Request(i, prompt, SamplingParams(max_tokens=8, temperature=1.0, seed=i), 61) for i in range(4)]
    for request in requests:
        engine.add(request)
    engine.step()
    assert len(engine.scheduler.running) == 1, "the others wait until the first has read it"
    engine.step()
    assert len(engine.scheduler.running) == 4
    cache = own_caches(engine)[0]
    assert len({tuple(cache.blocks.of(slot)[: len(prompt) // 32]) for slot in range(4)}) == 1, "blocks are stored once"
    while engine.has_work:
        engine.step()
    assert [r.stats.cached_tokens for r in requests[1:]] >= [len(prompt) - 3] * 3
    assert engine.totals.tokens < 2 * len(prompt) + 4 * 8 * 16


def test_requests_of_two_tenants_share_nothing() -> None:
    """Neither the target's entries nor those of a head."""
    runner = CpuRunner(model()).open(2, 256)
    engine = Engine(runner, recipe("head"), cost_model=Free(), config=EngineConfig(max_num_seqs=2))
    for i, tenant in enumerate(["a", "b", "a"]):
        request = Request(i, prompts()[8], SamplingParams(max_tokens=4, tenant=tenant), 61)
        engine.add(request)
        while engine.has_work:
            engine.step()
        assert (request.stats.cached_tokens > 0) == (i == 2)
    known = {front[:-1] for c in own_caches(engine)[1:] for front in c.blocks.tree.below if isinstance(front, tuple)}
    assert known == {(97,), (98,)}, "a head's entries stand behind their tenant"


def test_a_request_that_waits_and_is_cancelled_leaves_no_copy() -> None:
    runner = CpuRunner(model()).open(2, 256, 96)
    engine = Engine(runner, plain(), cost_model=Free(), config=EngineConfig(max_num_seqs=2))
    requests = [Request(i, prompts()[7][: 30 + i], SamplingParams(max_tokens=120), 61) for i in range(2)]
    requests[1].prompt[0] = 5
    for request in requests:
        engine.add(request)
    while not engine.saved_texts.held:
        engine.step()
    engine.cancel(requests[1])
    assert not engine.saved_texts.held and engine.saved_texts.saved > 0


RULES = (
    "You are a careful assistant of a library. Repeat each question, then answer in short sentences. Books may be kept for "
    "four weeks, films for one; ten cents are due for each day after that; nobody may hold more than twelve things. "
)
QUESTIONS = (
    "May I keep a film for two weeks?",
    "How many books may I borrow?",
    "List all the rules again, word by word.",
    "What does a book cost after five weeks?",
    "Repeat: books may be kept for four weeks, films for one.",
    "What is the fee?",
    "Write the rules as a list with numbers.",
    "Write a poem about films that come back late, in four lines.",
    "May my sister hold thirteen things?",
)


@remembered
def small_model() -> Loaded:
    return load("smollm2")


def answers(engine: Engine, together: bool) -> list[Request]:
    """Greedy and sampled answers to all questions, one after the other or `together`."""
    info = small_model().info
    texts = [info.tokenizer.encode(RULES + question) for question in QUESTIONS]
    found: list[Request] = []
    for i, text in enumerate(texts):
        sampling = SamplingParams(max_tokens=30 + 5 * i, temperature=float(i % 2), seed=i, ignore_eos=True)
        found.append(Request(i, list(text), sampling, info.vocab_size))
        engine.add(found[-1])
        while engine.has_work and (not together or i + 1 == len(texts)):
            engine.step()
            engine.runner.check_integrity()
    return found


@remembered
def small_model_alone() -> list[list[int]]:
    runner = runner_of(small_model())
    assert isinstance(runner, CpuRunner)
    own = CpuRunner(runner.model, runner.info, DenseCache(runner.model.cache_specs, slots=1, capacity=1024))
    engine = Engine(own, plain(), cost_model=Free(), config=EngineConfig(max_num_seqs=1))
    return [r.output for r in answers(engine, together=False)]


@pytest.mark.slow
@pytest.mark.parametrize("copies", [0, None], ids=["read again", "copied"])
@pytest.mark.parametrize("name", ["eagle3:depth=3:nodes=12", "prompt_lookup", "fast_draft:verifier=match"])
def test_recipes_of_a_real_model_say_what_it_says_alone(name: str, copies: int | None) -> None:
    target = runner_of(small_model())
    recipe = recipes.build(name, target)
    config = EngineConfig(max_num_seqs=8, max_saved_tokens=copies)
    engine = Engine(target.open(8, 1024, 384, recipe.needs.pools), recipe, cost_model=Free(), config=config)
    found = answers(engine, together=True)
    assert [r.output for r in found] == small_model_alone()
    assert sum(r.stats.preempted for r in found) > 0 and (engine.saved_texts.restored > 0) == (copies is None)
    for kind in ("rounds_all", "rounds_some", "rounds_none"):
        assert sum(getattr(r.stats, kind) for r in found) > 0, kind


def test_a_number_of_saved_tokens_that_is_none_is_refused() -> None:
    for wrong in (-1, True, "many"):
        with pytest.raises(OptionError, match="max_saved_tokens must be a whole number"):
            EngineConfig(max_saved_tokens=wrong)  # type: ignore[arg-type]


def test_a_prefix_pays_if_it_saves_a_block() -> None:
    assert Prefix(present=10, coming=42).pays and not Prefix(present=10, coming=41).pays

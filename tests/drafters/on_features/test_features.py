"""A head on the target's features never changes the text, and its rows are what a fresh one would have."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.cache.dense import DenseCache
from draftwood.controllers.costs.cost import CostModel
from draftwood.controllers.fixed import Fixed
from draftwood.core.config import EngineConfig
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.vocab_trim import VocabTrim
from draftwood.drafters.nothing import Nothing
from draftwood.engine.engine import Engine
from draftwood.testing.parts.tiny import CONFIG
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from tiny_heads import KEEP, features, random_net

PROMPTS = [[5, 7, 1, 3], list(range(1, 40)), [9, 9, 2], [5, 7, 1, 3, 8, 8], [4]]


def engine(
    target: Any, drafter: Any, policy: Any = None, *, depth: int = 3, rule: Any = None, slots: int = 4
) -> Engine:
    recipe = Recipe(
        drafter=drafter,
        policy=policy or Static((3, 2, 1), draw=Draw.GIVEN),
        verifier=rule or Match(),
        controller=Fixed(depth=depth, nodes=20),
    )
    recipe.check(target)
    config = EngineConfig(max_num_seqs=slots, max_model_len=CONFIG.max_positions, max_prefill_tokens=16)
    return Engine(target.open(slots, CONFIG.max_positions), recipe, cost_model=CostModel(), config=config)


def run(e: Engine, prompts: list[list[int]], *, temperature: float = 0.0, tokens: int = 24) -> list[Request]:
    requests = [
        Request(i, list(p), SamplingParams(temperature=temperature, seed=i, max_tokens=tokens), CONFIG.vocab_size)
        for i, p in enumerate(prompts)
    ]
    for r in requests:
        e.add(r)
    while e.has_work:
        e.step()
    assert not any(r.stats.disabled for r in requests)
    return requests


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "griffin", "deep_eagle"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_random_weights_leave_the_text_alone(target: Any, kind: str, temperature: float) -> None:
    plain = run(engine(target, Nothing(), Chain(draw=Draw.GIVEN)), PROMPTS, temperature=temperature)
    for policy in (Chain(draw=Draw.GIVEN), Static((3, 2, 1), draw=Draw.GIVEN)):
        drafted = run(engine(target, features(random_net(kind), target), policy), PROMPTS, temperature=temperature)
        assert [r.output for r in drafted] == [r.output for r in plain]
        assert sum(r.stats.draft_tokens for r in drafted) > 0


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", [pytest.param("eagle", marks=pytest.mark.slow), "eagle3", "griffin", "deep_eagle"])
def test_rows_after_every_round_are_those_of_a_fresh_head(target: Any, kind: str) -> None:
    """I3: fed the same text in one go, a new drafter has the same rows, whatever was drafted and dropped before."""
    drafter = features(random_net(kind, depth=2 if kind == "deep_eagle" else 1), target)
    e = engine(target, drafter)
    request = Request(0, PROMPTS[1], SamplingParams(temperature=1.0, seed=3, max_tokens=30), CONFIG.vocab_size)
    e.add(request)
    rounds = 0
    while e.has_work:
        e.step()
        if not e.drafter_state.slots:
            break
        size = e.drafter_state.runner.length(0)
        if not size:
            continue
        fresh = engine(target, drafter, depth=0)
        fresh.add(Request(1, request.known[: size + 2], SamplingParams(max_tokens=1), CONFIG.vocab_size))
        while not fresh.drafter_state.runner.length(0) >= size:
            fresh.step()
        for name in (spec.name for spec in e.drafter_state.runner.cache_specs):
            ours, theirs = (x.drafter_state.runner.cache.store(name)[0, :, :size] for x in (e, fresh))
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
        rounds += 1
    assert rounds > 3


def test_a_shared_prefix_is_shown_again_as_far_as_the_head_lacks_it(target: Any) -> None:
    drafter = features(random_net("eagle3"), target)
    e = engine(target, drafter, slots=2)
    run(e, [PROMPTS[1]])
    run(e, [PROMPTS[1] + [4, 4, 4]])
    alone = engine(target, drafter, slots=2)
    run(alone, [PROMPTS[1] + [4, 4, 4]])
    size = alone.drafter_state.runner.length(0)
    texts = [e.drafter_state.runner.cache.text(s) for s in range(2)]
    slot = texts.index(alone.drafter_state.runner.cache.text(0))
    for name in ("k0", "v0"):
        ours, theirs = (
            e.drafter_state.runner.cache.store(name)[slot, :, :size],
            alone.drafter_state.runner.cache.store(name)[0, :, :size],
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def shared_rows(target: Any, drafter: Any, first: int) -> tuple[int, list[tuple[torch.Tensor, torch.Tensor]]]:
    """How many rows a text beginning with `first` is spared, after texts that begin with 5 and with 9; the rows in its
    slot, beside those of a drafter that never saw another text."""
    e, text = engine(target, drafter, slots=3), list(range(1, 30))
    run(e, [[5, *text], [9, *text]], tokens=4)
    late = Request(7, [first, *text, 4, 4], SamplingParams(), CONFIG.vocab_size)
    spared = drafter.admit(e.drafter_state, 2, late)
    alone = engine(target, drafter, slots=3)
    run(alone, [late.prompt], tokens=4)
    stores = [x.drafter_state.runner.cache.store for x in (e, alone)]
    return spared, [(stores[0](name)[2, :, :spared], stores[1](name)[0, :, :spared]) for name in ("k0", "v0")]


@pytest.mark.parametrize("first", [5, 9])
def test_texts_that_begin_alike_share_rows_whatever_else_was_read_in_between(target: Any, first: int) -> None:
    spared, pairs = shared_rows(target, features(random_net("eagle3"), target), first)
    assert spared == 29, "every pair of the common text"
    for ours, fresh in pairs:
        torch.testing.assert_close(ours, fresh, rtol=1e-9, atol=1e-9)


def test_text_that_begins_like_no_other_shares_nothing(target: Any) -> None:
    assert shared_rows(target, features(random_net("eagle3"), target), 6)[0] == 0


def test_rows_taken_from_a_text_that_begins_differently_would_be_wrong(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twin: the same texts, shared by what follows their first token."""
    real = DenseCache.admit
    monkeypatch.setattr(DenseCache, "admit", lambda self, slot, tokens, most=None, before=(): real(self, slot, tokens))
    spared, pairs = shared_rows(target, features(random_net("eagle3"), target), 6)
    assert spared == 29 and all(not torch.allclose(*pair, rtol=1e-3, atol=1e-3) for pair in pairs)


def test_texts_that_are_read_together_are_fused_in_one_call_and_have_their_own_rows(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = features(random_net("eagle3"), target)
    prompts = [[5, 7, 1, 3], [9, 9, 2], [3, 7, 1, 3, 8, 8]]
    e, alone = engine(target, drafter), [engine(target, drafter) for _ in prompts]
    sizes: list[int] = []
    fuse = type(drafter.model).fuse
    monkeypatch.setattr(type(drafter.model), "fuse", lambda self, x: (sizes.append(len(x[0])), fuse(self, x))[1])
    for i, prompt in enumerate(prompts):
        for some in (e, alone[i]):
            some.add(Request(i, prompt, SamplingParams(max_tokens=9), CONFIG.vocab_size))
    e.step()
    assert sizes[0] == sum(map(len, prompts)), "the whole chunk; later calls are about roots"
    for slot, other in enumerate(alone):
        other.step()
        ours, theirs = e.drafter_state, other.drafter_state
        size = len(prompts[slot]) - 1
        assert ours.runner.cache.text(slot) == theirs.runner.cache.text(0) == prompts[slot][1:]
        torch.testing.assert_close(ours.slots[slot].waiting, theirs.slots[0].waiting, rtol=1e-9, atol=1e-9)
        for name in ("k0", "v0"):
            pair = ours.runner.cache.store(name)[slot, :, :size], theirs.runner.cache.store(name)[0, :, :size]
            torch.testing.assert_close(*pair, rtol=1e-9, atol=1e-9)


@pytest.mark.slow  # their distribution is in tests/test_exactness.py, a drawn draft of this head in tests/recipes
def test_drawn_chains_and_trees_run_under_rejection(target: Any) -> None:
    for policy in (Chain(), Static((2, 2), draw=Draw.DISTINCT)):
        drafter = features(random_net("eagle3"), target)
        answers = run(engine(target, drafter, policy, rule=Rejection()), PROMPTS, temperature=1.0)
        assert sum(r.stats.draft_tokens for r in answers) > 0


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.8])
def test_ranks_of_the_model_and_of_whole_distributions_grow_the_same_trees(
    target: Any, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grown() -> list[Any]:
        trees: list[Any] = []
        e = engine(target, features(random_net("eagle3"), target), BestFirst(beam=3))
        look = replace(
            e.recipe, watch=(lambda rnd, outcome, seen: trees.append(outcome.proposal.tree.tokens.tolist()),)
        )
        e.recipe = look
        run(e, PROMPTS, temperature=temperature)
        return trees

    by_model = grown()
    assert any(len(row) > 4 for tree in by_model for row in tree)
    monkeypatch.setattr(Round, "temperature", lambda self: None)
    assert grown() == by_model


def test_text_of_one_token_changes_no_other_draft(target: Any) -> None:
    """It has no pair before its first pass; the others are drafted, and later so is it."""
    answers = run(engine(target, features(random_net("eagle"), target)), [[4], PROMPTS[0]])
    assert all(r.stats.draft_tokens > 0 for r in answers)


# --- over fewer tokens

TRIM = torch.tensor([2, 3, 8, 10, 21, 30, 44, 46, 60])  # odd ones are not among the head's


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("policy", "more"),
    [
        pytest.param(BestFirst(beam=3), {}, id="ranked-own rows"),
        pytest.param(BestFirst(beam=3), {"target_rows": True}, id="ranked-target's rows", marks=pytest.mark.slow),
        pytest.param(Chain(draw=Draw.GIVEN), {}, id="whole distributions-own rows", marks=pytest.mark.slow),
        pytest.param(Chain(draw=Draw.GIVEN), {"target_rows": True}, id="whole distributions-target's rows"),
    ],
)
def test_trimmed_head_guesses_among_kept_tokens_and_the_text_stays(target: Any, more: Any, policy: Any) -> None:
    plain = run(engine(target, Nothing(), Chain(draw=Draw.GIVEN)), PROMPTS, temperature=0.8)
    guessed: set[int] = set()
    e = engine(target, VocabTrim(features(random_net("eagle3", **more), target), TRIM), policy)
    e.recipe = replace(e.recipe, watch=(lambda rnd, outcome, seen: guessed.update(_guesses(outcome)),))
    drafted = run(e, PROMPTS, temperature=0.8)
    assert [r.output for r in drafted] == [r.output for r in plain]
    assert guessed and guessed <= {t for t in TRIM.tolist() if not t % 2}


def _guesses(outcome: Any) -> set[int]:
    tree = outcome.proposal.tree
    return set(tree.tokens[:, 1:][tree.live[:, 1:]].tolist())


@pytest.mark.parametrize("more", [{}, {"target_rows": True}], ids=["own rows", "target's rows"])
def test_trimmed_logits_are_those_of_the_same_tokens(target: Any, more: Any) -> None:
    runner = features(random_net("eagle3", **more), target).model
    y = torch.randn(3, CONFIG.hidden_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole, some = runner._logits(y, None), runner._logits(y, only := torch.tensor([8, 30, 60]))  # type: ignore[attr-defined]
    torch.testing.assert_close(some, whole[:, torch.isin(KEEP, only)])
    prob, tokens = runner.ranked(some, [1.0] * 3, 2, only)
    assert set(tokens.flatten().tolist()) <= {8, 30, 60} and bool((prob <= 1).all())


def test_trim_that_leaves_nothing_drafts_nothing(target: Any) -> None:
    odd = torch.tensor([1, 3, 5])  # the head has even ones alone
    answers = run(engine(target, VocabTrim(features(random_net("eagle"), target), odd)), PROMPTS)
    assert sum(r.stats.draft_tokens for r in answers) == 0 and all(len(r.output) == 24 for r in answers)

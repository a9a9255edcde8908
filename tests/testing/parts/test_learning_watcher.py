"""A head may learn while it drafts: the text stays that of plain decoding, and more of the drafts is accepted."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.nothing import Nothing
from draftwood.engine.engine import Engine
from draftwood.errors import WeightsError
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.parts.learning_watcher import LearningWatcher
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from tiny_heads import features, random_net

PROMPTS = [[5, 7, 1, 3], [9, 9, 2], [5, 7, 1, 3, 8, 8]]
OPTIONS = [SamplingParams(temperature=0.7, seed=i, max_tokens=24) for i in range(3)]
TURNS = 10  # how often the same texts are asked for


@pytest.fixture(scope="module")
def target() -> CpuRunner:
    return tiny_runner()


def engine(target: CpuRunner, drafter: Any, watch: tuple[Any, ...] = (), depth: int = 2) -> Engine:
    policy = Static((3, 1), draw=Draw.GIVEN)
    controller = Fixed(depth, 6 if depth else 0)
    recipe = Recipe(drafter=drafter, policy=policy, verifier=Match(), controller=controller, watch=watch)
    return make_engine(target, recipe, slots=3)


def plain(target: CpuRunner) -> list[list[int]]:
    return [r.output for r in serve(engine(target, Nothing(), depth=0), PROMPTS, OPTIONS)]


def learning(target: CpuRunner, **more: Any) -> tuple[Engine, LearningWatcher]:
    module = random_net("eagle")
    drafter = features(module, target, None)
    watcher = LearningWatcher(drafter.model, module, target, **more)
    return engine(target, drafter, (watcher,)), watcher


def rounds(requests: Sequence[Request]) -> tuple[int, ...]:
    return tuple(sum(getattr(r.stats, f"rounds_{k}") for r in requests) for k in ("all", "some", "none"))


def accepted(requests: Sequence[Request]) -> int:
    return sum(sum(r.stats.accepted) for r in requests)


def trees(e: Engine) -> list[Any]:
    """What is drafted for the first prompt, by an engine that is open already and learns no more."""
    seen: list[Any] = []
    watch = e.recipe.watch
    e.recipe = replace(e.recipe, watch=(lambda rnd, outcome, out: seen.append(outcome.proposal.tree.tokens.tolist()),))
    serve(e, PROMPTS[:1], OPTIONS[:1])
    e.recipe = replace(e.recipe, watch=watch)
    return seen


@pytest.mark.slow
def test_text_stays_while_a_head_learns_and_more_is_accepted(target: CpuRunner) -> None:
    e, watcher = learning(target, every=2, rate=0.01)
    wanted = plain(target)
    turns = []
    for _ in range(TURNS):
        turns.append(serve(e, PROMPTS, OPTIONS))
        assert [r.output for r in turns[-1]] == wanted
        assert not e.failed_watchers and all(r.stats.disabled is None for r in turns[-1])
    print("accepted by turn", [accepted(t) for t in turns], "losses", watcher.losses[0], watcher.losses[-1])
    print("rounds that accepted all, some, none:", rounds(turns[0]), rounds(turns[-1]))
    assert watcher.losses[-1] < 0.7 * watcher.losses[0]
    assert accepted(turns[-1]) > accepted(turns[0])
    assert min(rounds([r for turn in turns for r in turn])) > 0


def test_open_engine_drafts_with_the_new_weights(target: CpuRunner) -> None:
    e, watcher = learning(target, rate=0.03)
    before = trees(e)
    serve(e, PROMPTS, OPTIONS)
    assert watcher.losses and trees(e) != before


def test_without_a_refresh_drafts_stay_as_they_were(target: CpuRunner) -> None:
    """The twin: the copy learns, the engine never hears of it."""
    e, watcher = learning(target, rate=0.03, refresh=False)
    before = trees(e)
    serve(e, PROMPTS, OPTIONS)
    assert watcher.losses and trees(e) == before


def test_learner_that_diverges_is_left_out_and_the_last_good_weights_draft_on(target: CpuRunner) -> None:
    e, watcher = learning(target)
    model, tried = watcher.model, []

    class Diverging:
        def __call__(self, *given: Any) -> None:
            tried.append(1)
            model.refresh({"fc.weight": torch.full((32, 64), float("nan"))})

    bad = Diverging()
    e.recipe = replace(e.recipe, watch=(bad,))
    got = serve(e, PROMPTS, OPTIONS)
    assert [r.output for r in got] == plain(target) and e.failed_watchers == [bad] and len(tried) == 1
    assert all(r.stats.disabled is None for r in got) and sum(r.stats.draft_tokens for r in got) > 0
    with pytest.raises(WeightsError, match="no number"):
        bad()

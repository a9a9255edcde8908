"""Branches from every position of a text are the chains that the drafter writes there, as far as they agree with it."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.learners.lengths import rollout
from draftwood.drafters.learners.lengths.rollout import agreed, taps_of
from draftwood.drafters.nets.make_drafter import feature_drafter
from draftwood.errors import CompositionError
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG
from draftwood.testing.runs import make_engine, serve
from draftwood.train.loop.teacher import read_features
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from own_layers import TARGETS

MOST = 4
PROMPTS = [[1, 2, 3], [7, 8, 9, 10, 11, 12], [5] * 9]


@cache
def target_of(backend: str) -> Any:
    return TARGETS[backend]()


@cache
def drafter_of(kind: str, backend: str) -> Any:
    target = target_of(backend)
    if kind == "draft model":
        return recipes.drafter("speculative_sampling:draft=first:3", target)
    return feature_drafter(random_head(kind, target, rows=30), target)


KINDS = [("eagle3", "float64"), ("eagle", "float64"), ("draft model", "float64"), ("eagle3", "int8")]


def features_of(kind: str, backend: str, text: list[int]) -> dict[int, Any]:
    taps = taps_of(drafter_of(kind, backend))
    if not taps:
        return {}
    ids = torch.tensor([text])
    return {tap: x[0] for tap, x in read_features(target_of(backend), ids, ids >= 0, taps).items()}


def real_chain(kind: str, backend: str, prompt: list[int]) -> tuple[int, list[int]]:
    """The root that the target emits behind a prompt, and what the drafter writes behind it in the engine."""
    drawn: list[list[int]] = []

    def watch(rnd: Any, outcome: Any, output: Any) -> None:
        if len(outcome.proposal.tree.tokens[0]) > 1:
            drawn.append(outcome.proposal.tree.tokens[0].tolist())

    recipe = Recipe(
        drafter=drafter_of(kind, backend),
        policy=Chain(Draw.GIVEN),
        verifier=Match(),
        controller=_Second(MOST),
        watch=(watch,),
    )
    serve(make_engine(target_of(backend), recipe), [prompt], SamplingParams(max_tokens=3 + MOST))
    return drawn[0][0], drawn[0][1:]


class _Second(Fixed):
    """Nothing is drafted in the first round, when some drafters have no features yet."""

    def plan(self, state: None, rnd: Any, load: Any) -> Any:
        limit = Fixed.plan(self, state, rnd, load)
        return limit if rnd.requests[0].output else limit.at_most([0] * rnd.batch, [0] * rnd.batch)


@pytest.mark.parametrize(("kind", "backend"), KINDS)
def test_the_count_is_that_of_the_drafters_chain_in_the_engine(kind: str, backend: str) -> None:
    """Texts that follow the chain for so many tokens and then leave it."""
    drafter = drafter_of(kind, backend)
    for prompt in PROMPTS:
        root, chain = real_chain(kind, backend, prompt)
        assert len(chain) == MOST
        for right in range(MOST + 1):
            left = [(t + 1) % CONFIG.vocab_size for t in chain[right : right + 1]]
            text = [*prompt, root, *chain[:right], *left, *chain[right + 1 :], 3]
            found = agreed(drafter, text, features_of(kind, backend, text), [len(prompt)], MOST)
            assert found == [right]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("kind", "backend"), KINDS)
@pytest.mark.parametrize("window", [3, 128])
def test_all_positions_at_once_count_what_each_counts_alone(
    kind: str, backend: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text consists of chains, so that many branches agree; windows end inside of them."""
    drafter, text = drafter_of(kind, backend), [1, 2, 3]
    for _ in range(3):
        root, chain = real_chain(kind, backend, text)
        text = [*text, root, *chain]
    features = features_of(kind, backend, text)
    roots = list(range(1, len(text)))
    alone = [agreed(drafter, text, features, [root], MOST)[0] for root in roots]
    monkeypatch.setattr(rollout, "WINDOW", window)
    assert agreed(drafter, text, features, roots, MOST) == alone
    assert {0, MOST} <= set(alone) and alone[-1] == 0, "nothing follows the last token"


def test_a_chain_counts_up_to_the_longest_and_no_root_costs_nothing() -> None:
    drafter = drafter_of("draft model", "float64")
    root, chain = real_chain("draft model", "float64", [1, 2, 3])
    text = [1, 2, 3, root, *chain]
    assert [agreed(drafter, text, {}, [3], most)[0] for most in range(MOST + 1)] == list(range(MOST + 1))
    assert agreed(drafter, text, {}, [], MOST) == []


def test_a_drafter_without_chains_of_a_net_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompositionError, match="not from NGram\nhint: inner=eagle3"):
        taps_of(recipes.drafter("prompt_lookup", target_of("float64")))

"""Copies beside a head's draft change how fast a text is written, not the text."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.fuse import Fuse
from draftwood.drafters.combine.route import Route
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.drafters.retrieval.stores.build import Piece, build_store
from draftwood.drafters.stateless import Stateless
from draftwood.models.loading.load import load
from draftwood.runners.open import runner_of
from draftwood.testing.contracts import toy_round
from draftwood.testing.folder import write_folder
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.oracle_drafter import NoisyOracle
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match
from fused_runs import TEXTS, WAYS, V, params

NGRAM = NGram()


@dataclass(frozen=True)
class Given(Stateless):
    """Drafts these tokens side by side."""

    tokens: tuple[int, ...]
    needs: Needs = Needs()
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        size = len(self.tokens)
        return base.with_given([list(self.tokens)], [[0] * size], [[-0.5] * size])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return runner_of(load(str(write_folder(tmp_path_factory.mktemp("model"))), dtype="float32"))


@pytest.fixture(scope="module")
def build(target: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Recipe]:
    head = write_head(tmp_path_factory.mktemp("head") / "head.safetensors", random_head("eagle3", target))
    return lambda **options: recipes.build("rasd", target, weights=str(head), **options)


def texts(target: Any, recipe: Recipe, options: list[SamplingParams]) -> tuple[list[list[int]], tuple[int, ...]]:
    done = serve(make_engine(target, recipe), [[t % target.info.vocab_size for t in text] for text in TEXTS], options)
    assert {r.stats.disabled for r in done} == {None}
    rounds = [(r.stats.rounds_all, r.stats.rounds_some, r.stats.rounds_none) for r in done]
    return [r.output for r in done], tuple(sum(column) for column in zip(*rounds, strict=True))


@pytest.mark.parametrize(("temperature", "more"), [*WAYS.values()][:3], ids=[*WAYS][:3])
@pytest.mark.parametrize("sizes", [{}, {"nodes": 8, "depth": 4, "retrieved": 6}], ids=str)
def test_texts_are_plain_decodings(
    target: Any, build: Any, sizes: dict[str, Any], temperature: float, more: Any
) -> None:
    options = params(temperature, **more)
    plain, _ = texts(target, recipes.build("autoregressive", target), options)
    found, _ = texts(target, build(**sizes), options)
    assert found == plain


def test_by_default_sizes_follow_costs_and_with_a_number_they_are_fixed(build: Any) -> None:
    assert isinstance(build().drafter, Route) and build().drafter.fuse
    fixed = build(nodes=8, retrieved=6)
    assert isinstance(fixed.drafter, Fuse) and fixed.controller == Fixed(8, 14)


def test_a_datastore_is_searched_too(target: Any, build: Any, tmp_path: Path) -> None:
    tokenizer = target.info.tokenizer
    named = {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.fingerprint}
    build_store(tmp_path / "texts.store", [Piece(np.arange(40))], **named)
    drafter = build(store=tmp_path / "texts.store", nodes=4, retrieved=8).drafter
    rnd = toy_round([[3, 7, 8]], target.info.vocab_size, temperature=0.0)
    state = drafter.init(1)
    made = drafter.drafters[2].propose(state[2], rnd, Proposal.roots(rnd.roots()), Limit.of([3], [4]), BestFirst())
    assert made.tree.tokens[0, 1:].tolist() == [9, 10, 11]


def test_only_copies_that_begin_as_the_head_does_are_kept() -> None:
    """The pruning of the paper, on a head that drafts 5 and 6 and a text that goes on with 3 and with 6."""
    rnd = toy_round([[1, 2, 3, 9, 1, 2, 6, 8, 1, 2]], V, temperature=0.0)

    def paths(prune: bool) -> set[tuple[int, ...]]:
        head = Given((5, 6))
        drafter = Fuse((head, NGRAM), given=8, prune=prune)
        tree = drafter.propose(drafter.init(1), rnd, Proposal.roots(rnd.roots()), Limit.of([3], [16]), BestFirst()).tree
        listed = tree.path_tokens(torch.arange(tree.num_nodes)[None])[0].tolist()
        return {tuple(t for t in path if t >= 0) for path, on in zip(listed, tree.live[0].tolist(), strict=True) if on}

    assert paths(True) == {(), (5,), (6,), (6, 8), (6, 8, 1)}
    assert paths(False) > paths(True)


def test_the_fused_tree_accepts_at_least_what_the_head_alone_does(target: Any) -> None:
    """Greedy, the same head with and without copies beside it: never fewer tokens a pass."""
    options = params(0.0)
    plain = serve(make_engine(target, recipes.build("autoregressive", target)), TEXTS, options)
    known = {tuple(text): r.output for text, r in zip(TEXTS, plain, strict=True)}
    head = NoisyOracle(known, V)
    both = Recipe(drafter=Fuse((head, NGRAM), 8), policy=BestFirst(), verifier=Match(), controller=Fixed(4, 18))
    alone = replace(both, drafter=head, controller=Fixed(4, 10))
    fused, single = (serve(make_engine(target, each), TEXTS, options) for each in (both, alone))
    assert [r.output for r in fused] == [r.output for r in single] == [r.output for r in plain]
    assert sum(r.stats.target_passes for r in fused) <= sum(r.stats.target_passes for r in single)

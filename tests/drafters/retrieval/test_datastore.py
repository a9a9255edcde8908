"""A draft from a datastore is what followed in it, within its limits, and never changes what is emitted."""

import math
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from device_runs import ran
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.retrieval.datastore import Datastore, open_store
from draftwood.drafters.retrieval.stores.store import Store
from draftwood.errors import OptionError
from draftwood.recipes import autoregressive
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.contracts import Always, check_drafter, toy_round
from draftwood.testing.exact import first_token, joint_error, leaves
from draftwood.testing.parts.table_model import TableModel, context_free, random_probs
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder, tiny_runner
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from planted_rules import LongestOfPaths
from small_stores import made_store

ROUNDING = 1e-12
GIVEN = Chain(Draw.GIVEN)


def proposed(drafter: Datastore, texts: list[list[int]], limit: Limit) -> Proposal:
    rnd = toy_round(texts, 100)
    return drafter.propose(None, rnd, Proposal.roots(rnd.roots()), limit, GIVEN)


def paths(proposal: Proposal, b: int = 0) -> dict[tuple[int, ...], float]:
    """Live nodes by their path, with the share that their score stands for."""
    tree = proposal.tree
    tokens = tree.path_tokens(torch.arange(tree.num_nodes).expand(tree.batch, -1))[b].tolist()
    each = zip(tokens, tree.live[b].tolist(), tree.score[b].tolist(), strict=True)
    return {tuple(t for t in path if t >= 0): math.exp(score) for path, live, score in each if live}


def test_the_tree_holds_what_followed_and_scores_are_shares(tmp_path: Path) -> None:
    store = made_store(tmp_path / "s", [[1, 2, 3, 9], [1, 2, 3, 8], [1, 2, 4], [1, 2]], 10)
    found = paths(proposed(Datastore(store), [[7, 1, 2]], Limit.of([10], [64])))
    assert found == pytest.approx({(): 1, (3,): 0.5, (4,): 0.25, (3, 8): 0.25, (3, 9): 0.25})


def test_a_longer_match_is_followed_instead_of_a_shorter_one(tmp_path: Path) -> None:
    store = made_store(tmp_path / "s", [[5, 1, 2, 3], [1, 2, 4], [1, 2, 4]], 10)
    assert set(paths(proposed(Datastore(store), [[5, 1, 2]], Limit.of([2], [8])))) == {(), (3,)}
    assert set(paths(proposed(Datastore(store, max_span=2), [[5, 1, 2]], Limit.of([2], [1])))) == {(), (4,)}
    assert set(paths(proposed(Datastore(store, min_span=4), [[5, 1, 2]], Limit.of([2], [8])))) == {()}


def test_each_sequence_of_a_batch_has_its_own_limit_and_may_find_nothing(tmp_path: Path) -> None:
    store = made_store(tmp_path / "s", [[1, 2, 3, 4, 5, 6]], 10)
    texts = [[1, 2], [1, 2], [1, 2], [7, 7], [1], [2, 3]]
    batch = proposed(Datastore(store), texts, Limit.of([9, 2, 9, 9, 9, 0], [9, 9, 1, 9, 9, 9]))
    assert [len(paths(batch, b)) - 1 for b in range(6)] == [4, 2, 1, 0, 0, 0]


def test_the_contract_of_drafters_holds(tmp_path: Path) -> None:
    rng = random.Random(0)
    store = made_store(tmp_path / "s", [[rng.randrange(4) for _ in range(200)]], 4)
    check_drafter(Datastore(store, min_span=1), GIVEN, 4)


def test_options_that_cannot_be_are_refused(tmp_path: Path) -> None:
    store = made_store(tmp_path / "s", [[1]])
    wrong: tuple[dict[str, Any], ...] = ({"min_span": 0}, {"min_span": 3, "max_span": 2}, {"occurrences": 0})
    for options in wrong:
        with pytest.raises(OptionError, match="Datastore: "):
            Datastore(store, **options)


def test_without_a_store_the_error_says_how_to_build_one(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none is given\nhint: `draftwood datastore build FILES... --model NAME"):
        open_store(None, tiny_runner())
    made_store(tmp_path / "s", [[1]])
    with pytest.raises(OptionError, match="this target has no tokenizer"):
        open_store(tmp_path / "s", tiny_runner())


# --- exact, by enumeration


def recipe(store: Store, rule: object, depth: int = 2, nodes: int = 8, policy: Chain = GIVEN) -> Recipe:
    return Recipe(drafter=Datastore(store, min_span=1), policy=policy, verifier=rule, controller=Always(depth, nodes))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("seed", range(4))
def test_a_tree_of_retrieved_paths_is_exact(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    store = made_store(tmp_path / "s", [[rng.randrange(3) for _ in range(40)]], 3)
    assert proposed(Datastore(store, min_span=1), [[0]], Limit.of([2], [8])).tree.num_nodes > 4
    probs = random_probs(3, seed)
    found = leaves(TableModel(3, probs), lambda: recipe(store, Match()))
    assert joint_error(found, probs, 3, 3) < ROUNDING
    assert sum(leaf.prob for leaf in found if leaf.accepted) > 0.3
    whole = leaves(TableModel(3, probs), lambda: recipe(store, Match()), tokens=3)
    assert joint_error(whole, probs, 3, 3) < ROUNDING, "over several rounds"


def test_separate_draws_for_each_path_are_caught(tmp_path: Path) -> None:
    """The twin: each path is compared with draws of its own, the longest match is kept, a miss is drawn again. Candidates
    then come out too often, by the amount computed by hand."""
    p, store = (0.5, 0.3, 0.2), made_store(tmp_path / "s", [[0, 0], [0, 0], [0, 1]], 3)
    assert list(paths(proposed(Datastore(store, min_span=1), [[0]], Limit.of([1], [8])))) == [(), (0,), (1,)]
    model = TableModel(3, context_free(p))
    assert first_token(leaves(model, lambda: recipe(store, Match(), 1)), 3) == pytest.approx(p, abs=ROUNDING)
    wrong = leaves(model, lambda: recipe(store, LongestOfPaths(), 1))
    assert sum(leaf.prob for leaf in wrong) == pytest.approx(1, abs=ROUNDING)
    assert first_token(wrong, 3) == pytest.approx((0.675, 0.255, 0.07), abs=ROUNDING)
    assert joint_error(wrong, context_free(p), 3, 2) > 0.05


# --- the text of plain decoding, on both paths

MODEL = tiny_decoder(2)
PROMPTS = [[1 + i, 2, 3 + i] for i in range(8)]


def plain(options: dict[str, float]) -> tuple[list[SamplingParams], list[list[int]]]:
    params = [SamplingParams(seed=i, max_tokens=24, **options) for i in range(8)]  # pyright: ignore[reportArgumentType]
    return params, ran(CpuRunner(MODEL), autoregressive.build, PROMPTS, params).texts


@pytest.mark.one_in(5)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("nodes", [3, 16])
def test_the_text_is_that_of_plain_decoding_whether_drafts_are_right_or_wrong(
    tmp_path: Path, temperature: float, nodes: int
) -> None:
    """The store holds what will be said, with every sixth token another one: rounds accept all, some and none."""
    params, texts = plain({"temperature": temperature})
    spoiled = [
        [(t + 1) % CONFIG.vocab_size if i % 6 == 5 else t for i, t in enumerate(prompt + text)]
        for prompt, text in zip(PROMPTS, texts, strict=True)
    ]
    store = made_store(tmp_path / "s", spoiled, CONFIG.vocab_size, chunk_tokens=100)

    def build(_: object) -> Recipe:
        return replace(recipe(store, Match()), controller=Fixed(depth=3, nodes=nodes))

    alone = [ran(CpuRunner(MODEL), build, [PROMPTS[i]], [params[i]]).texts[0] for i in range(2)]
    assert alone == texts[:2]
    for target in (CpuRunner(MODEL), CudaRunner(MODEL)):
        found = ran(target, build, PROMPTS, params)
        assert found.texts == texts and found.disabled == {None}
        assert min(found.accepted) > 0, f"all, some and none: {found.accepted}"
        if isinstance(target, CudaRunner):
            assert found.read_once(), found.by_round()


def test_a_store_that_is_damaged_while_it_is_open_costs_the_draft_and_not_the_text(tmp_path: Path) -> None:
    params, texts = plain({"temperature": 0.0})
    store = made_store(tmp_path / "s", [p + t for p, t in zip(PROMPTS, texts, strict=True)], CONFIG.vocab_size)
    with (tmp_path / "s").open("r+b") as file:
        file.seek(store.info.suffixes_at)
        file.write(b"\xff" * 4 * store.info.size)
    found = ran(CpuRunner(MODEL), lambda _: recipe(store, Match()), PROMPTS, params)
    assert found.texts == texts and sum(found.accepted) == 0


@pytest.mark.parametrize("left", [0, 100])
def test_a_store_that_is_cut_while_it_is_open_costs_the_draft_and_not_the_process(tmp_path: Path, left: int) -> None:
    params, texts = plain({"temperature": 0.0})
    store = made_store(tmp_path / "s", [p + t for p, t in zip(PROMPTS, texts, strict=True)] * 99, CONFIG.vocab_size)
    os.truncate(tmp_path / "s", left)
    found = ran(CpuRunner(MODEL), lambda _: recipe(store, Match()), PROMPTS, params)
    assert found.texts == texts and sum(found.accepted) == 0
    assert all(f"s is damaged: it was cut to {left} bytes" in (reason or "") for reason in found.disabled)

"""A draft is what followed the root where the hidden state was alike, and never changes what is emitted."""

import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from device_runs import Ran, ran
from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import FINAL
from draftwood.core.last_rounds import LastRounds
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.retrieval.dense import DOUBT, NARROW, Dense, open_dense
from draftwood.drafters.retrieval.stores.dense.neighbours import EveryKey
from draftwood.drafters.retrieval.stores.dense.store import DenseStore
from draftwood.errors import OptionError
from draftwood.recipes import autoregressive
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.contracts import Always, check_drafter, toy_round
from draftwood.testing.exact import first_token, joint_error, leaves
from draftwood.testing.parts.table_model import Conditional, TableModel, context_free, random_probs
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder, tiny_runner
from draftwood.train.data.hidden_states import final_states
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from planted_rules import LongestOfPaths
from small_dense import fading, lengths, made_dense, model_info

ROUNDING = 1e-12
GIVEN = Chain(Draw.GIVEN)
RNG = random.Random(0)
TEXTS = [[RNG.randrange(10) for _ in range(40)] for _ in range(6)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DenseStore:
    return made_dense(tmp_path_factory.mktemp("stores") / "s", TEXTS, 10)


@dataclass(frozen=True, slots=True)
class Shown(Dense):
    """Every text ends where its last round left it, and its origin is known."""

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        texts = [r.known_from(0, r.num_known) for r in rnd.requests]
        rnd.origin = {FINAL: torch.from_numpy(np.array([h[-2] for h in fading(texts)]))}
        known: LastRounds = {slot: (r, r.num_known) for slot, r in zip(rnd.host_slots, rnd.requests, strict=True)}
        return Dense.propose(self, known, rnd, base, limit, policy)


def proposed(drafter: Dense, texts: Sequence[Sequence[int]], limit: Limit) -> list[dict[tuple[int, ...], float]]:
    """Of each sequence its nodes by their path, with the chance that their score stands for."""
    rnd = toy_round(texts, 10)
    tree = drafter.propose({}, rnd, Proposal.roots(rnd.roots()), limit, GIVEN).tree
    paths = tree.path_tokens(torch.arange(tree.num_nodes).expand(tree.batch, -1)).tolist()
    found: list[dict[tuple[int, ...], float]] = []
    for own, live, score in zip(paths, tree.live.tolist(), tree.score.tolist(), strict=True):
        each = zip(own, live, score, strict=True)
        found.append({tuple(t for t in path if t >= 0): math.exp(s) for path, there, s in each if there})
    return found


def test_a_text_of_the_store_goes_on_as_it_did(store: DenseStore) -> None:
    for text in TEXTS:
        (found,) = proposed(Shown(store, drafts=1), [text[:12]], Limit.of([6], [64]))
        longest = max(found, key=len)
        assert longest == tuple(text[12:18])
        assert all(chance == pytest.approx((1 / (1 + DOUBT)) ** len(path), rel=0.05) for path, chance in found.items())


def test_neighbours_with_another_token_are_left_out_and_weights_follow_their_cosines(store: DenseStore) -> None:
    tokens = store.tokens
    root = int(tokens[5])
    same = [int(p) for p in store.places if tokens[p] == root][:3]
    other = next(int(p) for p in store.places if tokens[p] != root)
    places, near = np.array([same[0], other, same[1], -1, same[2]]), np.array([1.0, 0.99, 0.9, 0.9, 0.8])
    found = Dense(store, drafts=2).continuations(places, near, root, 3)
    expected, total = dict[tuple[int, ...], float](), 0.0
    for place, weight in ((same[0], 1.0), (same[1], math.exp(-0.1 / NARROW))):
        total += weight
        row = tuple(tokens[place + 1 : place + 4].tolist())
        for size in range(1, 1 + next((i for i, t in enumerate(row) if t >= 10), 3)):
            expected[row[:size]] = expected.get(row[:size], 0.0) + weight
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(found.tokens, found.parents, strict=True):
        paths.append((*paths[parent], token))
    chances = {path: math.exp(score) for path, score in zip(paths[1:], found.score, strict=True)}
    weights = {(): total} | expected
    for path, chance in chances.items():
        above = chances[path[:-1]] if path[:-1] else 1.0
        assert chance == pytest.approx(above * weights[path] / (weights[path[:-1]] + DOUBT))
    assert set(chances) == set(expected)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=20), st.integers(1, 8), st.integers(1, 20))
def test_every_draft_stands_in_the_store_behind_the_root(text: list[int], depth: int, nodes: int) -> None:
    shared = _shared_store()
    (found,) = proposed(Shown(shared), [text], Limit.of([depth], [nodes]))
    spoken = [(text[-1], *path) for path in found if path]
    assert len(spoken) <= nodes and all(len(path) <= depth + 1 for path in spoken)
    for path in spoken:
        assert any(tuple(t[i : i + len(path)]) == path for t in TEXTS for i in range(1, len(t))), path


_MADE: list[DenseStore] = []


def _shared_store() -> DenseStore:
    """For hypothesis, which takes no fixtures of a test."""
    if not _MADE:
        import tempfile

        _MADE.append(made_dense(Path(tempfile.mkdtemp()) / "s", TEXTS, 10))
    return _MADE[0]


def test_searching_every_key_drafts_the_same(store: DenseStore) -> None:
    limit = Limit.of([4] * 6, [16] * 6)
    texts = [text[:20] for text in TEXTS]
    exact = replace(store, neighbours=EveryKey(store.keys))
    assert [set(a) for a in proposed(Shown(store), texts, limit)] == [
        set(a) for a in proposed(Shown(exact), texts, limit)
    ]


def test_each_sequence_has_its_own_limit_and_none_is_drafted_without_its_own_state(store: DenseStore) -> None:
    texts = [text[:12] for text in TEXTS]
    sizes = proposed(Shown(store, drafts=1), texts, Limit.of([9, 2, 9, 0, 9, 9], [9, 9, 1, 9, 0, 9]))
    assert [len(found) - 1 for found in sizes] == [9, 2, 1, 0, 0, 9]
    rnd = toy_round(texts, 10)
    rnd.origin = {FINAL: torch.from_numpy(np.array([h[-2] for h in fading(texts)]))}
    stale: LastRounds = {0: (rnd.requests[0], 12), 1: (rnd.requests[1], 11), 2: (rnd.requests[3], 12)}
    found = Dense(store).retrieve(stale, rnd, Limit.of([3] * 6, [9] * 6))
    assert [bool(each.tokens) for each in found] == [True, False, False, False, False, False]


def test_the_contract_of_drafters_holds(store: DenseStore) -> None:
    check_drafter(Shown(store), GIVEN, 10)
    check_drafter(Dense(store), GIVEN, 10)


def test_options_that_cannot_be_are_refused(store: DenseStore) -> None:
    wrong: tuple[dict[str, Any], ...] = ({"neighbours": 0}, {"drafts": 0})
    for options in wrong:
        with pytest.raises(OptionError, match="Dense: "):
            Dense(store, **options)
    with pytest.raises(OptionError, match=r"none is given\nhint: `draftwood datastore build FILES... --dense --model"):
        open_dense(None, tiny_runner())
    with pytest.raises(OptionError, match="no fingerprint to compare"):
        open_dense(store.path, tiny_runner())


# --- exact, by enumeration


def table_store(path: Path, documents: Sequence[Sequence[int]]) -> DenseStore:
    return made_dense(path, documents, 3, read=lengths, info=model_info(3, hidden_size=1))


def recipe(store: DenseStore, rule: object, depth: int = 2, nodes: int = 8) -> Recipe:
    return Recipe(drafter=Dense(store), policy=GIVEN, verifier=rule, controller=Always(depth, nodes))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("seed", range(3))
def test_a_tree_of_retrieved_paths_is_exact(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    store = table_store(tmp_path / "s", [[rng.randrange(3) for _ in range(40)]])
    probs = random_probs(3, seed)
    found = leaves(TableModel(3, probs), lambda: recipe(store, Match()), tokens=4)
    assert joint_error(found, probs, 3, 4) < ROUNDING
    assert sum(leaf.prob for leaf in found if leaf.accepted) > 0.3


def second_token(probs: Conditional, store: DenseStore, rule: object) -> list[float]:
    """The distribution of the second token where the first, which is never drafted, was 0."""
    found = [x for x in leaves(TableModel(3, probs), lambda: recipe(store, rule, 1), tokens=3) if x.output[0] == 0]
    total = sum(leaf.prob for leaf in found)
    return first_token([replace(leaf, output=leaf.output[1:], prob=leaf.prob / total) for leaf in found], 3)


def test_separate_draws_for_each_path_are_caught(tmp_path: Path) -> None:
    """The twin: each path is compared with draws of its own, the longest match is kept, a miss is drawn again. Candidates
    then come out too often, by the amount computed by hand."""
    p = (0.5, 0.3, 0.2)
    store = table_store(tmp_path / "s", [[2, 0, 0], [2, 0, 1]])
    store = replace(store, neighbours=EveryKey(store.keys))  # of equal keys the earlier one comes first
    assert second_token(context_free(p), store, Match()) == pytest.approx(p, abs=ROUNDING)
    wrong = second_token(context_free(p), store, LongestOfPaths())
    assert wrong == pytest.approx((0.675, 0.255, 0.07), abs=ROUNDING)


# --- the text of plain decoding, on both paths

MODEL = tiny_decoder(2)
PROMPTS = [[1 + i, 2, 3 + i] for i in range(8)]
V = CONFIG.vocab_size


def alternating(tokens: Any) -> torch.Tensor:
    """Even and odd tokens take turns."""
    return torch.arange(V) % 2 == len(tokens) % 2


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "grammar": {"grammar": alternating},
}


def spoiled_store(path: Path, texts: list[list[int]]) -> DenseStore:
    """What will be said, with every sixth token another one."""
    documents = [
        [(t + 1) % V if i % 6 == 5 else t for i, t in enumerate(prompt + text)]
        for prompt, text in zip(PROMPTS, texts, strict=True)
    ]
    info = replace(CpuRunner(MODEL).info, fingerprint="tiny")
    return made_dense(path, documents, read=final_states(CpuRunner(MODEL)), info=info)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("way", WAYS)
def test_the_text_is_that_of_plain_decoding_whether_drafts_are_right_or_wrong(tmp_path: Path, way: str) -> None:
    params = [SamplingParams(seed=i, max_tokens=24, **{"temperature": 1.0, **WAYS[way]}) for i in range(8)]
    texts = ran(CpuRunner(MODEL), autoregressive.build, PROMPTS, params).texts
    store = spoiled_store(tmp_path / "s", texts)

    def build(_: object) -> Recipe:
        return replace(recipe(store, Match()), controller=Fixed(depth=3, nodes=3 if way == "greedy" else 16))

    alone = [ran(CpuRunner(MODEL), build, [PROMPTS[i]], [params[i]]).texts[0] for i in range(2)]
    assert alone == texts[:2]
    found = ran(CpuRunner(MODEL), build, PROMPTS, params)
    assert found.texts == texts and found.disabled == {None}
    assert min(found.accepted) > 0, f"all, some and none: {found.accepted}"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_on_a_device_a_round_reads_the_verdict_and_the_hidden_states(tmp_path: Path, temperature: float) -> None:
    params = [SamplingParams(seed=i, max_tokens=16, temperature=temperature) for i in range(8)]
    texts = ran(CpuRunner(MODEL), autoregressive.build, PROMPTS, params).texts
    store = spoiled_store(tmp_path / "s", texts)

    def build(_: object) -> Recipe:
        return replace(recipe(store, Match()), controller=Fixed(depth=3, nodes=16))

    found: Ran = ran(CudaRunner(MODEL), build, PROMPTS, params)
    assert found.texts == texts and found.disabled == {None} and sum(found.accepted[:2]) > 0
    assert {reads.total for reads in found.reads} == {1, 2}, found.by_round()
    assert found.reads[0].total == 1, "the first round has no hidden state to look up"


def test_a_store_that_is_damaged_while_it_is_open_costs_the_draft_and_not_the_text(tmp_path: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=16)
    texts = ran(CpuRunner(MODEL), autoregressive.build, PROMPTS, params).texts
    store = spoiled_store(tmp_path / "s", texts)
    start, size = store.info.sections()["places"]
    with (tmp_path / "s").open("r+b") as file:
        file.seek(start)
        file.write(b"\xff" * size)
    found = ran(CpuRunner(MODEL), lambda _: recipe(store, Match()), PROMPTS, params)
    assert found.texts == texts and sum(found.accepted) == 0


@pytest.mark.parametrize("searched", ["graph", "every key"])
def test_a_store_that_is_cut_while_it_is_open_costs_the_draft_and_not_the_process(
    tmp_path: Path, searched: str
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=16)
    texts = ran(CpuRunner(MODEL), autoregressive.build, PROMPTS, params).texts
    store = spoiled_store(tmp_path / "s", texts)
    store = store if searched == "graph" else replace(store, neighbours=EveryKey(store.keys))
    os.truncate(tmp_path / "s", 0)
    found = ran(CpuRunner(MODEL), lambda _: recipe(store, Match()), PROMPTS, params)
    assert found.texts == texts and sum(found.accepted) == 0
    assert all("s is damaged: it was cut to 0 bytes" in (reason or "") for reason in found.disabled)

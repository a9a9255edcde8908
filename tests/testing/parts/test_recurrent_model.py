"""A recurrent target emits the text of plain decoding, whatever tree rides with it."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from draftwood.cache.dense import DenseCache
from draftwood.cache.states import SlotStates
from draftwood.controllers.fixed import Fixed
from draftwood.core.common_prefix import common_prefix
from draftwood.core.forward import ForwardInput, LayerPlan
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.errors import EngineError, ModelError
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.parts.oracle_drafter import NoisyOracle
from draftwood.testing.parts.recurrent_model import RecurrentModel
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

V = 23


@pytest.fixture(scope="module")
def model() -> CpuRunner:
    return CpuRunner(RecurrentModel(V))


def run(runner: CpuRunner, slot: int, ids: list[int], parents: list[int], first: int = 0) -> torch.Tensor:
    """Logits of every token of a pass; entries `first`, `first` + 1, ..."""
    done = runner.length(slot)
    depth: dict[int, int] = {-1: -1}
    for i, parent in enumerate(parents):
        depth[first + i] = depth.get(parent, first - 1) + 1
    index = torch.arange(len(ids))
    at = torch.tensor([done + depth[first + i] for i in range(len(ids))])
    x = ForwardInput(torch.tensor(ids), torch.full_like(index, slot), at, first + index, torch.tensor(parents), index)
    return runner.execute(x).logits


def alone(model: CpuRunner, text: Sequence[int]) -> torch.Tensor:
    """Logits after a text, read token by token in a cache of its own."""
    runner = model.open(1, 64)
    runner.admit(0, list(text))
    logits = torch.zeros(1, V)
    for token in text:
        logits = run(runner, 0, [token], [-1])
        runner.commit([0], [[0]], [[token]])
    return logits[-1]


def test_any_tree_pass_equals_each_path_alone(model: CpuRunner) -> None:
    rng = random.Random(0)
    runner = model.open(2, 64)
    text = [rng.randrange(V) for _ in range(5)]
    runner.admit(0, [*text, 0])
    runner.admit(1, [3, 0])
    run(runner, 0, text, list(range(-1, 4)))
    runner.commit([0], [list(range(5))], [text])
    for _ in range(6):
        size = rng.randrange(2, 9)
        ids = [rng.randrange(V) for _ in range(size)]
        parents = [-1, *(rng.randrange(i) for i in range(1, size))]
        logits = run(runner, 0, ids, parents)
        paths: list[list[int]] = []
        for node, parent in enumerate(parents):
            paths.append([*(paths[parent] if parent >= 0 else []), node])
            assert torch.equal(logits[node], alone(model, [*text, *(ids[i] for i in paths[node])]))
        kept = rng.choice(paths)
        runner.commit([0], [kept], [[ids[i] for i in kept]])
        text += [ids[i] for i in kept]
    assert len(text) > 12


def test_a_tree_staged_in_several_passes_equals_one_pass(model: CpuRunner) -> None:
    ids, parents = [4, 5, 6, 7, 8], [-1, 0, 0, 2, 3]
    whole, parts = model.open(1, 64), model.open(1, 64)
    for runner in (whole, parts):
        runner.admit(0, [4])
    logits = run(whole, 0, ids, parents)
    pieces = [run(parts, 0, ids[a:b], parents[a:b], a) for a, b in ((0, 1), (1, 3), (3, 5))]
    assert torch.equal(torch.cat(pieces), logits)


def test_a_child_before_its_parent_is_refused(model: CpuRunner) -> None:
    runner = model.open(1, 64)
    runner.admit(0, [1])
    with pytest.raises(EngineError, match="entry 0 stands before entry 1, which it follows"):
        run(runner, 0, [1, 2], [1, -1])
    with pytest.raises(EngineError, match="entry 1 stands before entry 5"):
        run(runner, 0, [1, 2], [-1, 5])
    run(runner, 0, [1, 2], [-1, 0])


def test_half_a_pass_is_refused(model: CpuRunner) -> None:
    runner = model.open(1, 64)
    zero = torch.zeros(1, dtype=torch.int64)
    x = ForwardInput(zero, zero, zero, zero, zero - 1, zero)
    with pytest.raises(ModelError, match="has one layer, asked for"):
        runner.execute(x, layers=LayerPlan(stop=0))
    with pytest.raises(ModelError, match="all of its 1 layers"):
        runner.first_layers(1)


# --- whole runs


def prompts(count: int = 8, seed: int = 0) -> list[list[int]]:
    """Ragged, and repetitive enough for copying to find something."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        phrase = [rng.randrange(V) for _ in range(rng.randrange(3, 9))]
        found.append((phrase * 5)[: rng.randrange(4, 40)])
    return found


def params(count: int, temperature: float = 1.0) -> list[SamplingParams]:
    return [SamplingParams(temperature=temperature, seed=10 + i, max_tokens=24) for i in range(count)]


def recipe(drafter: Any, depth: int = 4) -> Recipe:
    return Recipe(drafter=drafter, policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(depth, 2 * depth))


def plain(model: CpuRunner, texts: list[list[int]], options: list[SamplingParams]) -> list[list[int]]:
    """Each request alone, in an engine of its own."""
    each = zip(texts, options, strict=True)
    return [serve(make_engine(model, recipe(Nothing(), 0)), [text], [p])[0].output for text, p in each]


def oracle(texts: list[list[int]], answers: list[list[int]], right: float = 0.7) -> NoisyOracle:
    return NoisyOracle({tuple(t): a for t, a in zip(texts, answers, strict=True)}, V, right)


def rounds(requests: Sequence[Request]) -> tuple[int, int, int]:
    """That accepted all, some and none of their draft."""
    one, two, three = (sum(getattr(r.stats, f"rounds_{k}") for r in requests) for k in ("all", "some", "none"))
    return one, two, three


@pytest.mark.one_in(5)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["oracle", "ngram"])
def test_whole_runs_equal_plain_decoding(model: CpuRunner, name: str, temperature: float) -> None:
    """Trees, chunks of prompts, arrivals, and a cache that is too small for all of them."""
    texts, options = prompts(), params(8, temperature)
    wanted = plain(model, texts, options)
    drafter = oracle(texts, wanted) if name == "oracle" else NGram(n_min=1)
    engine = make_engine(model, recipe(drafter), slots=5, max_cache_tokens=150, chunk=16)
    got = serve(engine, texts, options, arrive={i: 2 * i for i in range(8)})
    assert [r.output for r in got] == wanted
    assert all(r.stats.disabled is None for r in got)
    assert sum(r.stats.preempted for r in got) > 0, "the cache is meant to be too small"
    print(name, temperature, "rounds that accepted all, some, none:", rounds(got))
    if name == "oracle":
        assert min(rounds(got)) >= 5
    else:
        assert sum(rounds(got)) > 0
    engine.runner.check_integrity()


def test_a_conversation_goes_on_from_the_state_of_its_last_turn(model: CpuRunner) -> None:
    first, options = prompts(2), params(2)
    answers = plain(model, first, options)
    second = [[*t, *a, 5, 6] for t, a in zip(first, answers, strict=True)]
    shorter = [[*t[:-1], 1, 2] for t in first]
    texts = [*first, *second, *shorter]
    wanted = [*answers, *plain(model, second, options), *plain(model, shorter, options)]
    engine = make_engine(model, recipe(oracle(texts, wanted)), slots=4)
    got = [r for i in (0, 2, 4) for r in serve(engine, texts[i : i + 2], options)]
    assert [r.output for r in got] == wanted
    cached = [r.stats.cached_tokens for r in got]
    assert cached[2:4] == [len(t) + len(a) - 1 for t, a in zip(first, answers, strict=True)], "whole texts are shared"
    assert cached[4:] == [0, 0], "parts of texts are not"
    assert min(rounds(got)) > 0, rounds(got)


# --- the twins


def test_keeping_the_state_of_a_wrong_entry_changes_the_text(model: CpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, options = prompts(), params(8)
    wanted = plain(model, texts, options)
    real = SlotStates.keep

    def one_before(self: SlotStates, slots: Any, entries: Any) -> None:
        """The state after the entry before the last one, where a tree was accepted."""
        moved = [[*path[:-1], path[-2]] if len(path) > 1 and path[-1] != len(path) - 1 else path for path in entries]
        real(self, slots, moved)

    monkeypatch.setattr(SlotStates, "keep", one_before)
    got = serve(make_engine(model, recipe(oracle(texts, wanted))), texts, options)
    assert [r.output for r in got] != wanted


def test_taking_over_part_of_a_text_with_its_state_changes_the_text(
    model: CpuRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, options = prompts(1)[0], params(1)
    other = [*text[:-2], 1, 2, 3]
    wanted = plain(model, [other], options)

    def any_prefix(self: DenseCache, slot: int, want: list[int], most: int | None = None) -> int:
        return common_prefix(self._slots[slot].text, want)

    def copied(self: SlotStates, slot: int, source: int, tokens: int) -> None:
        self.committed["h"][slot] = self.committed["h"][source]
        self._tokens[slot] = tokens

    monkeypatch.setattr(DenseCache, "_usable", any_prefix)
    monkeypatch.setattr(SlotStates, "start", copied)
    engine = make_engine(model, recipe(Nothing(), 0), slots=2)
    serve(engine, [text], options)
    got = serve(engine, [other], options)
    assert got[0].stats.cached_tokens > 0 and [r.output for r in got] != wanted

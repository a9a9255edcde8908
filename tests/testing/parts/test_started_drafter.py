"""A pass that goes on from what a drafter has run is the plain pass: the same logits, features, entries and texts."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import ALL, FINAL, ForwardInput, ForwardOutput, LayerPlan, Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit, Load
from draftwood.core.proposal import Proposal, Started
from draftwood.core.protocols import Drafter, Runner, TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Outcome
from draftwood.drafters.stateless import Stateless
from draftwood.engine.engine import Engine
from draftwood.errors import CompositionError
from draftwood.models.backends import int8_weights
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.recipes import autoregressive
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.started_drafter import StartedDrafter
from draftwood.testing.parts.table_model import TableModel, context_free
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder, tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from native_levels import BEST, kept_weights, opened

PROMPTS = [[1, 2, 3], [7, 8], [9, 4, 4, 5, 6, 1, 2, 3, 9, 9, 9], [5], [3, 3]]
FIVE = Fixed(depth=3, nodes=5)
DEEP = 3  # of four layers: what they agree on with all four is accepted often enough
POLICIES: list[TreePolicy] = [Chain(Draw.GIVEN), BestFirst(beam=3)]  # the second grows more nodes than it keeps


@cache
def int8() -> CpuRunner:
    weights = int8_weights.from_tensors(CONFIG, kept_weights(CONFIG))
    return CpuRunner(NativeDecoder(CONFIG, weights, opened(BEST)))


TARGETS: dict[str, Callable[[], Runner]] = {
    "float64": tiny_runner,
    "int8": int8,
    "device": lambda: CudaRunner(tiny_decoder()),
}


def where(name: str) -> Any:
    return as_if_on_a_device() if name == "device" else nullcontext()


@dataclass
class Seen:
    """What a run showed: rounds by how much of their draft was accepted, and features by request and position."""

    rounds: Counter[str] = field(default_factory=Counter[str])
    features: dict[tuple[int, int, int], Tensor] = field(default_factory=dict[tuple[int, int, int], Tensor])
    holes: int = 0  # drafts whose nodes were staged with gaps
    plans: Counter[tuple[int, int | None]] = field(default_factory=Counter[tuple[int, int | None]])

    def __call__(self, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        for taken, deep in zip(outcome.accepted, outcome.deepest, strict=True):
            if deep:
                self.rounds["all" if taken == deep else "some" if taken else "none"] += 1
        assert output.token_index is not None
        for b, path in enumerate(outcome.verdict.to_host().paths):
            for depth, place in enumerate(output.token_index[b, path].tolist()):
                for tap, feature in output.features.items():
                    self.features[rnd.requests[b].id, rnd.host_lengths[b] - 1 + depth, tap] = feature[place].clone()
        started = outcome.proposal.started
        if started is not None and started.entries is not None:
            ride = outcome.proposal.tree.live & (torch.arange(started.entries.shape[1]) != started.entries)
            self.holes += int(ride.any(1).sum())


class Uneven(Fixed):
    """Every third token of a text is not drafted."""

    def plan(self, state: None, rnd: Round, load: Load) -> Limit:
        limit = super().plan(state, rnd, load)
        return limit.at_most([9 if length % 3 else 0 for length in rnd.host_lengths], [9] * rnd.batch)


@contextmanager
def counted(engine: Engine, seen: Seen) -> Iterator[None]:
    """Which layers the runner of an engine runs."""
    runner: Any = engine.runner
    real = runner.execute

    def execute(x: ForwardInput, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL) -> ForwardOutput:
        seen.plans[layers.start, layers.stop] += 1
        return real(x, taps=taps, layers=layers)

    runner.execute = execute
    yield
    del runner.execute


def run(
    target: Runner,
    drafter: Drafter | None,
    policy: TreePolicy,
    temperature: float,
    *,
    slots: int = 8,
    chunk: int = 512,
    controller: Fixed = FIVE,
    taps: frozenset[int] = frozenset({DEEP, FINAL}),
) -> tuple[list[Request], Engine, Seen]:
    """Five requests through an engine; without a drafter, by plain decoding with the same taps."""
    seen = Seen()
    drafting = controller if drafter else Fixed(depth=0, nodes=0)
    recipe = Recipe(
        drafter=drafter or Tapping(Needs(taps=taps)),
        policy=policy,
        verifier=Match(),
        controller=drafting,
        watch=(seen,),
    )
    engine = make_engine(target, recipe, slots=slots, chunk=chunk)
    params = [SamplingParams(max_tokens=24 + i, temperature=temperature, seed=i, logprobs=2) for i in range(5)]
    with counted(engine, seen):
        requests = serve(engine, PROMPTS, params)
    return requests, engine, seen


@dataclass(frozen=True)
class Tapping(Stateless):
    """Plain decoding that looks at features."""

    needs: Needs
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        return base


def started(layers: int = DEEP, taps: frozenset[int] = frozenset({DEEP, FINAL})) -> StartedDrafter:
    return StartedDrafter(layers, Needs(borrow=True, taps=taps))


def texts(requests: list[Request]) -> list[list[int]]:
    assert not any(r.stats.disabled for r in requests), [r.stats.disabled for r in requests]
    return [r.output for r in requests]


def logprob_gap(mine: list[Request], plain: list[Request]) -> float:
    """Between the log-probabilities of emitted tokens and of the best ones."""
    most = 0.0
    for a, b in zip(mine, plain, strict=True):
        for (x, best), (y, others) in zip(a.logprobs, b.logprobs, strict=True):
            pairs = [(x, y), *((p, q) for (_, p), (_, q) in zip(best, others, strict=True))]
            most = max(most, *(abs(p - q) for p, q in pairs))
    return most


def gap(a: Any, b: Any) -> float:
    return float((torch.as_tensor(a).double() - torch.as_tensor(b).double()).abs().max())


@pytest.mark.one_in(7)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("policy", POLICIES, ids=["chain", "cut tree"])
@pytest.mark.parametrize("name", TARGETS)
def test_logits_features_entries_and_texts_are_those_of_plain_decoding(
    name: str, policy: TreePolicy, temperature: float
) -> None:
    with where(name):
        mine, engine, seen = run(TARGETS[name](), started(), policy, temperature)
        plain, other, looked = run(TARGETS[name](), None, policy, temperature)
    assert texts(mine) == texts(plain)
    print(name, policy, temperature, dict(seen.rounds), dict(seen.plans))
    assert min(seen.rounds[kind] for kind in ("all", "some", "none")) > 0, seen.rounds
    assert seen.plans[DEEP, None] > 10 and seen.plans[0, None] <= 1, "only a pass over prompts runs all layers"
    assert bool(seen.holes) == (name != "device" and policy is POLICIES[1])
    most = 0.0 if name == "int8" else 1e-12
    assert logprob_gap(mine, plain) <= most
    common = seen.features.keys() & looked.features.keys()
    assert len(common) >= 2 * sum(len(r.output) - 1 for r in mine), "two taps of every token but the last"
    assert max(gap(seen.features[key], looked.features[key]) for key in common) <= most
    assert entry_gap(engine, other, mine) <= most


def entry_gap(engine: Engine, other: Engine, done: list[Request]) -> float:
    """Between the committed entries of two engines that served the same texts in the same slots."""
    runners: list[Any] = [engine.runner, other.runner]
    caches = [runner.cache for runner in runners]
    most = 0.0
    for slot, request in enumerate(done):
        for c in caches:
            if not c.length(slot):  # entries in blocks belong to no slot when their text has ended
                c.admit(slot, [*request.prompt, *request.output])
        size = min(c.length(slot) for c in caches)
        assert size > 20
        for layer in range(CONFIG.num_layers):
            for kind in "kv":
                a, b = (c.store(f"{kind}{layer}")[slot, :, :size] for c in caches)
                most = max(most, gap(a, b))
    return most


@pytest.mark.one_in(3)
@pytest.mark.parametrize("layers", [1, DEEP])
@pytest.mark.parametrize("name", TARGETS)
def test_started_sequences_ride_with_prompt_chunks_and_undrafted_ones(
    name: str, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three slots and chunks of four: some are started while others prefill or are not drafted."""
    real, sizes = ForwardInput.part, Counter[int]()

    def part(self: ForwardInput, places: list[int]) -> ForwardInput:
        sizes[len(places)] += 1
        return real(self, places)

    monkeypatch.setattr(ForwardInput, "part", part)
    with where(name):
        size = Uneven(depth=3, nodes=5)
        mine, _, seen = run(TARGETS[name](), started(layers), POLICIES[1], 0.0, slots=3, chunk=4, controller=size)
        plain, _, _ = run(TARGETS[name](), None, POLICIES[1], 0.0, slots=3, chunk=4)
    assert texts(mine) == texts(plain)
    assert logprob_gap(mine, plain) <= (0.0 if name == "int8" else 1e-12)
    assert seen.rounds["all"] and seen.rounds["none"]
    assert sum(sizes.values()) > 10 and len(sizes) > 2, "bare roots, and chunks"


def test_a_tap_in_a_started_layer_makes_the_pass_run_them_all() -> None:
    target = tiny_runner()
    mine, _, seen = run(target, started(taps=frozenset({1, FINAL})), POLICIES[0], 0.0)
    plain, _, _ = run(target, None, POLICIES[0], 0.0)
    assert texts(mine) == texts(plain)
    assert not seen.plans[DEEP, None] and seen.rounds["all"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TARGETS)
def test_a_tap_in_a_started_layer_that_the_drafter_has_kept_costs_nothing(name: str) -> None:
    """With chunks and rounds without drafts beside it, whose features come from a pass of their own."""
    taps = frozenset({1, DEEP, FINAL})
    drafter = replace(started(taps=taps), below=1)
    with where(name):
        size = Uneven(depth=3, nodes=5)
        mine, _, seen = run(TARGETS[name](), drafter, POLICIES[1], 0.0, slots=3, chunk=4, controller=size)
        plain, _, looked = run(TARGETS[name](), None, POLICIES[1], 0.0, slots=3, chunk=4, taps=taps)
    assert texts(mine) == texts(plain) and seen.plans[DEEP, None] > 10
    common = seen.features.keys() & looked.features.keys()
    assert {tap for *_, tap in common} == taps
    assert max(gap(seen.features[key], looked.features[key]) for key in common) <= (0.0 if name == "int8" else 1e-12)


def test_control_a_kept_tap_of_other_nodes_is_seen() -> None:
    def other(s: Started) -> Started:
        return replace(s, features={tap: x.roll(1, dims=1) for tap, x in s.features.items()})

    taps = frozenset({1, DEEP, FINAL})
    own = replace(started(taps=taps), below=1)
    mine, _, seen = run(tiny_runner(), Spoilt(other, own.needs, own=own), POLICIES[0], 0.0)
    plain, _, looked = run(tiny_runner(), None, POLICIES[0], 0.0, taps=taps)
    common = seen.features.keys() & looked.features.keys()
    assert texts(mine) == texts(plain)
    assert max(gap(seen.features[key], looked.features[key]) for key in common) > 0.1


def test_on_a_device_a_round_reads_once() -> None:
    with as_if_on_a_device():
        recipe = Recipe(
            drafter=StartedDrafter(2), policy=BestFirst(beam=2), verifier=Match(), controller=Fixed(depth=2, nodes=6)
        )
        engine = make_engine(CudaRunner(tiny_decoder()), recipe)
        for i in range(3):
            engine.add(Request(i, [1 + i, 2], SamplingParams(max_tokens=40, temperature=0.0), CONFIG.vocab_size))
        engine.step()
        engine.step()
        with HostReads() as reads:
            engine.step()
    assert reads.total == 1, reads.by_name


OWN = StartedDrafter(DEEP)


@dataclass(frozen=True)
class Spoilt(Stateless):
    """What a drafter has started, changed on the way."""

    change: Callable[[Started], Started]
    needs: Needs = Needs(borrow=True)
    draws: frozenset[Draw] = frozenset(Draw)
    own: StartedDrafter = OWN

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        proposal = self.own.propose(None, rnd, base, limit, policy)
        assert proposal.started is not None
        return replace(proposal, started=self.change(proposal.started))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TARGETS)
def test_hidden_states_of_another_node_change_the_text(name: str) -> None:
    with where(name):
        plain, _, _ = run(TARGETS[name](), None, POLICIES[0], 0.0)
        wrong = Spoilt(lambda s: replace(s, hidden=s.hidden.roll(1, dims=1)))
        mine, _, _ = run(TARGETS[name](), wrong, POLICIES[0], 0.0)
    assert texts(mine) != texts(plain)


def test_entries_that_do_not_follow_their_nodes_change_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgotten(self: Started, order: Tensor) -> Started:
        hidden = self.hidden.gather(1, order[..., None].expand(-1, -1, self.hidden.shape[-1]))
        return replace(self, hidden=hidden, entries=torch.arange(order.shape[1]).expand_as(order))

    plain, _, _ = run(tiny_runner(), None, POLICIES[1], 0.0)
    monkeypatch.setattr(Started, "compact", forgotten)
    mine, _, _ = run(tiny_runner(), started(), POLICIES[1], 0.0)
    assert texts(mine) != texts(plain)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "change",
    [
        lambda s: replace(s, hidden=s.hidden[..., 1:]),
        lambda s: replace(s, layers=CONFIG.num_layers + 1),
        lambda s: replace(s, entries=torch.zeros_like(s.entries)),
        lambda s: replace(s, entries=s.entries + 1),
        lambda s: replace(s, entries=s.entries * 1000),
    ],
    ids=["narrow", "too many layers", "one entry for all", "no root", "outside the slot"],
)
def test_what_does_not_fit_disables_the_drafter_and_leaves_the_text(change: Callable[[Started], Started]) -> None:
    plain, _, _ = run(tiny_runner(), None, POLICIES[0], 0.0)
    mine, _, _ = run(tiny_runner(), Spoilt(change), POLICIES[0], 0.0)
    assert [r.output for r in mine] == [r.output for r in plain]
    assert all("propose" in str(r.stats.disabled) for r in mine)


def test_a_target_that_runs_all_layers_or_none_is_refused() -> None:
    recipe = replace(autoregressive.build(tiny_runner()), drafter=StartedDrafter(1))
    with pytest.raises(CompositionError, match="StartedDrafter runs some of the target's layers"):
        recipe.check(TableModel(4, context_free([0.25] * 4)).runner())
    recipe.check(tiny_runner())

"""A feature net in rectangles drafts what the same net drafts on the processor: passes, trees and whole chains."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from device_passes import Part, as_pass, drawn, near, text
from device_runs import Ran, ran
from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import ForwardInput
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.vocab_trim import VocabTrim
from draftwood.drafters.levels import DeviceLevels
from draftwood.drafters.nets.runners import device_runner
from draftwood.drafters.nets.runners.device_runner import DeviceRunner
from draftwood.drafters.nets.runners.runner import FloatRunner
from draftwood.drafters.on_features.features import Features
from draftwood.kernels.gpu.twins import Twins
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.contracts import _paths
from draftwood.testing.host_reads import HostReads
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from tiny_heads import KEEP, random_net

NETS: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle": ("eagle", {}),
    "eagle3": ("eagle3", {}),
    "target's rows": ("eagle3", {"target_rows": True}),
    "normed output": ("eagle3", {"norm_output": True}),
    "griffin": ("griffin", {}),
    "deep eagle": ("deep_eagle", {"depth": 3}),
}
TRIM = torch.tensor([0, 2, 4, 10, 60])


@pytest.fixture(autouse=True, params=["stock", "in blocks"])
def cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to attend; that in blocks with twins of the kernels, exactly."""
    if request.param == "in blocks":
        monkeypatch.setattr(device_runner, "operations_of", lambda target: Twins())
        monkeypatch.setattr(device_runner, "HEAD_WIDTHS", (8,))
    return request.param


def both(name: str, slots: int = 4, capacity: int = 64) -> tuple[FloatRunner, DeviceRunner]:
    kind, more = NETS[name]
    target, net = CpuRunner(tiny_decoder(2)), random_net(kind, **more)
    return FloatRunner(net, target, KEEP).open(slots, capacity), DeviceRunner(net, target, KEEP).open(slots, capacity)


def fed(x: ForwardInput, seed: int = 0) -> ForwardInput:
    """With random features beside every token, logits wanted everywhere."""
    noise = torch.Generator().manual_seed(seed)
    hidden = torch.randn(x.size, CONFIG.hidden_size, generator=noise, dtype=torch.float64)
    return replace(x, hidden=hidden)


@pytest.mark.one_in(11)
@pytest.mark.parametrize("only", [None, TRIM], ids=["all", "trimmed"])
@pytest.mark.parametrize("name", NETS)
def test_passes_are_those_of_the_processor(name: str, only: torch.Tensor | None) -> None:
    rng = random.Random(1)
    runners = both(name)
    for runner in runners:
        for slot in range(4):
            runner.admit(slot, [1, 2])
    for turn in range(5):
        slots = rng.sample(range(4), rng.randrange(1, 5))
        parts = [drawn(rng, slot, rng.randrange(1, 6), rng.randrange(4)) for slot in slots]
        x = fed(as_pass(parts, [runners[0].length(slot) for slot in slots], told=bool(turn % 2)), turn)
        x = replace(x, want=x.want[rng.randrange(x.size) :].flip(0))
        (right, logits), (found, scored) = (runner.execute(x, only) for runner in runners)
        near(found, right)
        near(scored, logits)
        paths = [part.path(rng.randrange(len(part.ids))) for part in parts]
        words = [[part.ids[i] for i in path] for part, path in zip(parts, paths, strict=True)]
        for runner in runners:
            runner.commit(slots, paths, words)
        for temperature, k in ((1.0, 5), (0.7, 2)):
            (right, ids), (found, tokens) = (
                runner.ranked(logits, [temperature] * len(logits), min(k, logits.shape[1]), only) for runner in runners
            )
            near(found, right)
            assert torch.equal(tokens, ids)


def chained(runner: FloatRunner, parts: list[Part], x: ForwardInput, steps: int, only: Any) -> Any:
    """The loop: one token of each text after another, each behind the one before it."""
    ids: Any = runner.ids if only is None else only
    ends = [x.spans[b].stop - 1 for b in range(len(parts))]
    a, logits = runner.execute(replace(x, want=torch.tensor(ends)), only)
    a = a[ends]
    tokens: list[torch.Tensor] = []
    probs: list[torch.Tensor] = []
    for step in range(steps):
        prob, column = logits.softmax(-1).max(-1)
        tokens.append(ids[column])
        probs.append(prob)
        if step + 1 == steps:
            break
        entry = torch.tensor([part.known + step for part in parts])
        place = torch.tensor([runner.length(part.slot) for part in parts]) + entry
        at = torch.arange(len(parts))
        slots = torch.tensor([part.slot for part in parts])
        one = ForwardInput(tokens[-1], slots, place, entry, entry - 1, want=at, hidden=a)
        a, logits = runner.execute(one, only)
    return torch.stack(tokens, 1), torch.stack(probs, 1)


@pytest.mark.one_in(11)
@pytest.mark.parametrize("only", [None, TRIM], ids=["all", "trimmed"])
@pytest.mark.parametrize("name", NETS)
def test_chains_in_one_call_are_those_of_the_loop(name: str, only: torch.Tensor | None) -> None:
    rng = random.Random(3)
    runners = both(name, capacity=600)
    for runner in runners:
        for slot in range(4):
            runner.admit(slot, [1, 2])
    for steps, sizes in ((4, (3, 1, 5)), (1, (2,)), (3, (1, 500, 1, 1)), (6, (1, 4, 2, 3))):
        slots = rng.sample(range(4), len(sizes))
        parts = [drawn(rng, slot, size, 0) for slot, size in zip(slots, sizes, strict=True)]
        x = fed(as_pass(parts, [runners[0].length(slot) for slot in slots]), steps)
        tokens, probs = chained(runners[0], parts, x, steps, only)
        with HostReads() as reads:
            found = runners[1].best_chains(x, [1.0] * len(parts), steps, only)
        assert reads.total == 0
        assert found is not None and torch.equal(found[0][..., 0], tokens)
        torch.testing.assert_close(found[1][..., 0].double(), probs, rtol=1e-5, atol=1e-6)
        for runner in runners:
            runner.commit(slots, [list(range(part.known)) for part in parts], [part.ids for part in parts])
    for spec in runners[0].cache_specs:
        for slot in range(4):
            size = runners[0].length(slot)
            near(*(runner.cache.store(spec.name)[slot, :, :size] for runner in reversed(runners)))


def test_another_temperature_is_left_to_the_loop() -> None:
    runner = both("eagle3")[1]
    assert runner.best_chains(fed(as_pass([text(0, [1])], [0])), [0.7], 3) is None


def test_rows_are_asked_of_the_target_once_for_each_choice_of_tokens() -> None:
    for name in NETS:
        runner = both(name)[1]
        whole, some = runner.rows(None), runner.rows(TRIM)
        assert whole.shape == (len(KEEP), CONFIG.hidden_size) and some.shape == (len(TRIM), CONFIG.hidden_size)
        assert runner.rows(TRIM) is some and runner.rows(None) is whole and runner.open(1, 8).rows(TRIM) is some
        at = [int((token == KEEP).nonzero()) for token in TRIM if token in KEEP]
        near(some, whole[at])


# --- whole drafts


class Trees:
    """A watcher that keeps every round's trees, by request: paths of tokens, and the score of each."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, int, set[tuple[int, ...]]]] = []

    def __call__(self, rnd: Any, outcome: Any, output: Any) -> None:
        for b, request in enumerate(rnd.requests):
            self.rounds.append((request.id, rnd.host_lengths[b], _paths(outcome.proposal, b)))


def drafted(
    device: bool, name: str, policy: Any, rule: Any, params: list[SamplingParams], trim: bool
) -> tuple[Ran, Any]:
    kind, more = NETS[name]
    model, trees = tiny_decoder(2), Trees()

    def build(target: Any) -> Recipe:
        net = random_net(kind, **more)
        drafter: Any = Features((DeviceRunner if device else FloatRunner)(net, target, KEEP))
        drafter = VocabTrim(drafter, TRIM) if trim else drafter
        size = Fixed(depth=3, nodes=7)
        return Recipe(drafter=drafter, policy=policy, verifier=rule, controller=size, watch=(trees,))

    prompts = [[3, 1, 4, 1, 5, 9, 2, 6][: 2 + 2 * (i % 4)] for i in range(len(params))]
    target = CudaRunner(model) if device else CpuRunner(model)
    found = ran(target, build, prompts, params, arrive={1: 2}, slots=3, chunk=6, counted=False)
    return found, trees.rounds


@pytest.mark.parametrize(
    ("name", "policy", "rule", "trim"),
    [
        ("eagle", BestFirst(3), Match(), False),
        ("eagle3", BestFirst(1), Match(), False),
        ("target's rows", Static((3, 2, 1), draw=Draw.GIVEN), Match(), False),
        ("eagle3", Chain(draw=Draw.GIVEN), Match(), False),
        ("eagle3", Chain(), Rejection(), False),
        ("eagle3", Static((2, 2, 1)), Rejection(), False),
        ("target's rows", BestFirst(2), Match(), True),
        ("normed output", BestFirst(1), Match(), False),
        ("griffin", BestFirst(3), Match(), False),
        ("griffin", Chain(draw=Draw.GIVEN), Match(), False),
        ("deep eagle", BestFirst(3), Match(), False),
        ("deep eagle", Chain(), Rejection(), False),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.slow
def test_trees_drafted_without_a_host_read_are_those_of_the_processor(
    name: str, policy: Any, rule: Any, trim: bool, temperature: float
) -> None:
    params = [SamplingParams(temperature=temperature, seed=i, max_tokens=7) for i in range(4)]
    (plain, right), (device, found) = (drafted(on, name, policy, rule, params, trim) for on in (False, True))
    assert device.texts == plain.texts and device.accepted == plain.accepted
    assert found == right
    sizes = {len(paths) for *_, paths in found}
    assert max(sizes) > 3, "they were trees"


def test_a_node_that_reads_another_output_than_its_parents_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin."""
    step = DeviceLevels.step

    def spoiled(self: DeviceLevels, tree: Any, frontier: Any) -> Any:
        level = step(self, tree, frontier)
        return replace(level, above=torch.zeros_like(level.above))

    monkeypatch.setattr(DeviceLevels, "step", spoiled)
    params = [SamplingParams(temperature=0.0, max_tokens=7) for _ in range(2)]
    (plain, right), (device, found) = (
        drafted(on, "eagle3", BestFirst(3), Match(), params, False) for on in (False, True)
    )
    assert found != right
    assert device.texts == plain.texts, "which no text shows"

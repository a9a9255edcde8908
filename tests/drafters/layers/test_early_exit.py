"""A target that leaves after its first layers to draft writes its own text, and runs those layers once."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from draftwood.controllers.confidence import Confident
from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import ALL, ForwardInput, ForwardOutput, LayerPlan
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Runner, TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.feature_text import TextState
from draftwood.drafters.layers.early_exit import EarlyExit
from draftwood.drafters.layers.first_layers import FirstLayers
from draftwood.drafters.learners.plans import exit_plan
from draftwood.drafters.nets.make_drafter import exit_drafter
from draftwood.drafters.nets.store import Head
from draftwood.errors import OptionError
from draftwood.recipes import autoregressive
from draftwood.testing.host_reads import as_if_on_a_device
from draftwood.testing.runs import make_engine, serve
from draftwood.testing.tiny import CONFIG, tiny_runner
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from own_layers import PROMPTS, TARGETS, int8, served

LAYERS = 3  # of four


def head(target: Runner, kind: str = "exit", layers: int = LAYERS) -> Head:
    """An untrained net of which the attention says something."""
    keep = torch.arange(CONFIG.vocab_size)
    plan = exit_plan(kind, target, keep, layers=layers, rate=1e-3, seed=1, share=1.0, muon=False)
    assert plan.net is not None
    tensors = {name: x.detach().float().clone() for name, x in plan.net.state_dict().items()}
    noise = torch.Generator().manual_seed(2)
    tensors["layer.out.weight"] = 0.05 * torch.randn(tensors["layer.out.weight"].shape, generator=noise)
    return Head(plan.config, tensors, None, "", {})


def drafter(target: Runner, kind: str = "exit", layers: int = LAYERS) -> EarlyExit:
    return exit_drafter(head(target, kind, layers), target)


@pytest.mark.parametrize("kind", ["exit", "exit_layer"])
@pytest.mark.parametrize("policy", [Chain(Draw.GIVEN), BestFirst(2, children=2)], ids=["chain", "tree"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", list(TARGETS))
def test_the_text_is_that_of_plain_decoding(name: str, temperature: float, policy: TreePolicy, kind: str) -> None:
    target = TARGETS[name]()
    with as_if_on_a_device() if name == "device" else nullcontext():
        done, seen = served(target, drafter(target, kind), temperature, policy)
        plain, _ = served(target, None, temperature)
    assert {r.stats.disabled for r in done} == {None}
    assert [r.output for r in done] == [r.output for r in plain]
    print(name, temperature, policy, kind, dict(seen.rounds))
    assert all(seen.rounds[each] for each in ("all", "some", "none")), seen.rounds


def test_also_where_requests_lose_their_slots_in_between() -> None:
    target = int8()
    done, seen = served(target, drafter(target), 0.0, max_cache_tokens=60)
    assert [r.output for r in done] == [r.output for r in served(target, None, 0.0)[0]]
    assert sum(seen.rounds.values()) > 10 and sum(r.stats.preempted for r in done) > 0


@pytest.mark.parametrize("threshold", [0.0, 0.02, 1.0])
def test_also_where_a_draft_ends_at_an_improbable_token(threshold: float) -> None:
    target = int8()
    done, seen = served(target, drafter(target), 0.0, controller=Confident(3, threshold=threshold))
    assert [r.output for r in done] == [r.output for r in served(target, None, 0.0)[0]] and seen.rounds["all"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rejection_takes_the_same_drafts(temperature: float) -> None:
    """Greedy texts are plain decoding's; sampled ones have their distribution, which tests of the rule show."""
    target = int8()
    done, seen = served(target, drafter(target), temperature, Chain(), Rejection())
    assert {r.stats.disabled for r in done} == {None} and seen.rounds["some"] + seen.rounds["all"]
    if not temperature:
        assert [r.output for r in done] == [r.output for r in served(target, None, 0.0)[0]]


def test_a_draft_at_the_end_of_the_context_is_shorter() -> None:
    target = int8()
    parts: dict[str, Any] = {"verifier": Match(), "controller": Fixed(depth=5)}
    texts: list[list[list[int]]] = []
    for each in (Recipe(drafter=drafter(target), policy=Chain(Draw.GIVEN), **parts), autoregressive.build(target)):
        engine = make_engine(target, each, slots=2, capacity=64)
        done = serve(engine, PROMPTS[:5], [SamplingParams(max_tokens=500)] * 5)
        assert {r.stats.disabled for r in done} == {None} and {r.finish_reason for r in done} == {"length"}
        texts.append([r.output for r in done])
    assert texts[0] == texts[1]


def test_the_first_layers_of_a_drafted_token_are_run_once_and_every_cache_holds_the_text_before_the_root() -> None:
    """The ledger of a round with K drafted tokens: K + 1 tokens in layers [0, l), then as many in layers [l, L)."""
    target = tiny_runner()
    recipe = Recipe(
        drafter=drafter(target),
        policy=Chain(Draw.GIVEN),
        verifier=Match(),
        controller=Fixed(depth=3),
        watch=(ledger := Ledger(),),
    )
    engine = make_engine(target, recipe, slots=1)
    runner: Any = engine.runner
    ran: Counter[tuple[int, int | None]] = Counter()
    real = runner.execute

    def execute(x: ForwardInput, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL) -> ForwardOutput:
        ran[layers.start, layers.stop] += x.size
        return real(x, taps=taps, layers=layers)

    runner.execute = execute
    ledger.engine = engine
    (done,) = serve(engine, [[1, 2, 3]], [SamplingParams(max_tokens=30)])
    assert done.stats.disabled is None and ledger.drafted > 10
    assert ran.pop((0, None)) == 4, (
        "only the prompt, and the last token, which needs no draft, run all layers in one pass"
    )
    assert set(ran) == {(0, LAYERS), (LAYERS, None)} and len(set(ran.values())) == 1, ran
    assert ran[LAYERS, None] == ledger.drafted + ledger.rounds


class Ledger:
    """Looks at the caches between rounds."""

    def __init__(self) -> None:
        self.engine: Any = None
        self.drafted = self.rounds = 0

    def __call__(self, rnd: Round, outcome: Any, output: ForwardOutput) -> None:
        nodes = outcome.proposal.tree.num_nodes
        if nodes == 1:
            return
        self.drafted += nodes - 1
        self.rounds += 1
        state: TextState = self.engine.drafter_state
        slot, before = rnd.host_slots[0], rnd.host_lengths[0] - 1
        kept = outcome.accepted[0] + 1
        assert self.engine.runner.length(slot) == before + kept  # the root and the accepted tokens
        assert state.runner.length(slot) + state.slots[slot].held == before + kept  # nothing of a rejected token


@dataclass(frozen=True, slots=True, eq=False)
class OneLayerEarly(EarlyExit):
    """Twin: hands on the hidden states of one layer less than it says."""

    def propose(self, state: TextState, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        made = EarlyExit.propose(self, state, rnd, base, limit, policy)
        if made.started is None or rnd.target is None:
            return made
        first = FirstLayers(rnd.target, rnd, self.layers - 1)
        return replace(made, started=replace(made.started, hidden=first.upto(made.tree)))


@dataclass(frozen=True, slots=True, eq=False)
class LeavesEntries(EarlyExit):
    """Twin: the first layers' entry of the root is that of a token that was drafted, as if a rejected one had stayed."""

    def propose(self, state: TextState, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        made = EarlyExit.propose(self, state, rnd, base, limit, policy)
        if made.started is not None and rnd.target is not None:
            other = torch.cat([made.tree.tokens[:, -1:], made.tree.tokens[:, 1:]], dim=1)
            FirstLayers(rnd.target, rnd, self.layers).upto(replace(made.tree, tokens=other))
        return made


@pytest.mark.parametrize("twin", [OneLayerEarly, LeavesEntries])
def test_control_wrong_states_of_first_layers_change_the_text(twin: type[EarlyExit]) -> None:
    target = tiny_runner()
    done, _ = served(target, twin(drafter(target).model), 0.0)
    assert {r.stats.disabled for r in done} == {None}
    assert [r.output for r in done] != [r.output for r in served(target, None, 0.0)[0]]


@pytest.mark.parametrize("layers", [0, -1, CONFIG.num_layers])
def test_an_exit_outside_the_target_is_refused(layers: int) -> None:
    with pytest.raises(OptionError, match="not inside the target"):
        drafter(tiny_runner(), layers=layers)

"""A target that leaves after its first layers to draft writes its own text, and runs those layers once."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from cache_ledger import first_wrong, keep_a_guess, ledger
from draftwood.controllers.fixed import Fixed
from draftwood.controllers.stopping.confidence import Confident
from draftwood.core.forward import ALL, ForwardInput, ForwardOutput, LayerPlan
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit, Load
from draftwood.core.proposal import Proposal, Started
from draftwood.core.protocols import Runner, TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Times
from draftwood.drafters.combine.arms import ConfidentChain
from draftwood.drafters.combine.route import Route
from draftwood.drafters.layers.early_exit import EarlyExit
from draftwood.drafters.layers.first_layers import FirstLayers
from draftwood.drafters.nets.make_drafter import exit_drafter
from draftwood.drafters.on_features.feature_text import TextState
from draftwood.engine import drafting
from draftwood.errors import OptionError
from draftwood.recipes import autoregressive
from draftwood.testing.contracts import toy_round
from draftwood.testing.host_reads import as_if_on_a_device
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from own_layers import EXIT as LAYERS
from own_layers import PROMPTS, TARGETS, exit_head, int8, served


def drafter(target: Runner, kind: str = "exit", layers: int = LAYERS) -> EarlyExit:
    return exit_drafter(exit_head(target, kind, layers), target)


@pytest.mark.parametrize("kind", ["exit", "exit_layer"])
@pytest.mark.parametrize("policy", [Chain(Draw.GIVEN), BestFirst(2, children=2)], ids=["chain", "tree"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.slow
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


def test_the_first_layers_of_a_drafted_token_are_run_once() -> None:
    """The ledger of a round with K drafted tokens: K + 1 tokens in layers [0, l), then as many in layers [l, L)."""
    target = tiny_runner()
    recipe = Recipe(
        drafter=drafter(target),
        policy=Chain(Draw.GIVEN),
        verifier=Match(),
        controller=Fixed(depth=3),
        watch=(drafts := Drafts(),),
    )
    engine = make_engine(target, recipe, slots=1)
    runner: Any = engine.runner
    ran: Counter[tuple[int, int | None]] = Counter()
    real = runner.execute

    def execute(x: ForwardInput, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL) -> ForwardOutput:
        ran[layers.start, layers.stop] += x.size
        return real(x, taps=taps, layers=layers)

    runner.execute = execute
    (done,) = serve(engine, [[1, 2, 3]], [SamplingParams(max_tokens=30)])
    assert done.stats.disabled is None and drafts.drafted > 10
    assert ran.pop((0, None)) == 4, (
        "only the prompt, and the last token, which needs no draft, run all layers in one pass"
    )
    assert set(ran) == {(0, LAYERS), (LAYERS, None)} and len(set(ran.values())) == 1, ran
    assert ran[LAYERS, None] == drafts.drafted + drafts.rounds


@dataclass(frozen=True)
class Cheap(Fixed):
    """Fixed limits; a pass costs 1 and 1 % more for every token, a drafted token 1 %."""

    def plan(self, state: None, rnd: Round, load: Load) -> Limit:
        return replace(Fixed.plan(self, state, rnd, load), cost_model=self)  # type: ignore[arg-type]

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        return 1 + 0.01 * tokens

    def draft_seconds(self, passes: int, nodes: int | None = None) -> float:
        return 0.01 * passes

    def rest_seconds(self) -> float:
        return 0.0

    def observe(self, times: Times) -> None:
        return None


@pytest.mark.one_in(2)
@pytest.mark.parametrize("slots", [1, 8])
def test_where_a_route_scores_a_part_of_the_draft_no_layer_runs_twice_over_a_token(slots: int) -> None:
    target = int8()
    route = Route((), drafter(target), ConfidentChain(4))
    recipe = Recipe(drafter=route, policy=Chain(Draw.GIVEN), verifier=Match(), controller=Cheap(4))
    engine, params = make_engine(target, recipe, slots=slots), [SamplingParams(max_tokens=12)] * len(PROMPTS)
    runner: Any = engine.runner
    ran: Counter[tuple[int, int | None]] = Counter()
    real = runner.execute

    def execute(x: ForwardInput, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL) -> ForwardOutput:
        ran[layers.start, layers.stop] += x.size
        return real(x, taps=taps, layers=layers)

    runner.execute = execute
    done = serve(engine, PROMPTS, params)
    plain = serve(make_engine(target, autoregressive.build(target), slots=slots), PROMPTS, params)
    assert [r.output for r in done] == [r.output for r in plain] and {r.stats.disabled for r in done} == {None}
    scored, drafted = ran[LAYERS, None], ran[0, LAYERS]
    assert 0 < scored <= drafted and (slots == 1 or scored < drafted), f"less is scored than was drafted: {ran}"
    assert slots > 1 or ran[LAYERS, None] > ran[0, None] - sum(map(len, PROMPTS)), "most rounds are drafted"


class Drafts:
    """Drafted tokens, and rounds that had some."""

    def __init__(self) -> None:
        self.drafted = self.rounds = 0

    def __call__(self, rnd: Round, outcome: Any, output: ForwardOutput) -> None:
        nodes = outcome.proposal.tree.num_nodes
        self.drafted += nodes - 1
        self.rounds += nodes > 1


def noted(made: Callable[[Runner], EarlyExit]) -> tuple[Counter[str], list[Request]]:
    return ledger(made, Fixed(depth=3), lambda engine: [engine.drafter_state])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["exit", "exit_layer"])
def test_after_every_round_each_cache_holds_the_text_before_the_root(kind: str) -> None:
    found, done = noted(lambda target: drafter(target, kind))
    assert {r.stats.disabled for r in done} == {None}
    assert set(found) == {"the text"} and found["the text"] > 40


def test_control_a_net_that_keeps_a_guess_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_a_guess(monkeypatch)
    found, _ = noted(drafter)
    assert any("net" in each for each in found), found


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
@pytest.mark.slow
def test_control_wrong_states_of_first_layers_change_the_text(twin: type[EarlyExit]) -> None:
    target = tiny_runner()
    done, _ = served(target, twin(drafter(target).model), 0.0)
    assert {r.stats.disabled for r in done} == {None}
    assert [r.output for r in done] != [r.output for r in served(target, None, 0.0)[0]]
    found, _ = noted(lambda target: twin(drafter(target).model))
    where = {OneLayerEarly: f"k{LAYERS}", LeavesEntries: "k0"}  # and nothing in the layers below
    assert first_wrong(found) == {where[twin]}, found


@pytest.mark.parametrize("started", [True, False])
def test_layers_that_a_draft_ran_for_the_pass_do_not_count_as_slow_drafting(started: bool) -> None:
    """The pass had one layer of four: with all of them it would have taken 0.08 s, and 10 times that is more than 0.5 s."""
    target = tiny_runner()
    recipe = Recipe(drafter=drafter(target), policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(depth=3))
    engine, rnd = make_engine(target, recipe, disable_slow_drafts=True), toy_round([[1]], CONFIG.vocab_size)
    made = Proposal.roots(rnd.roots())
    if started:
        made = replace(made, started=Started(LAYERS, torch.zeros(1, 1, CONFIG.hidden_size)))
    for _ in range(drafting.SLOW_ROUNDS):
        drafting.disable_slow(engine, rnd, Times({"propose": 0.5, "score": 0.02}), made)
    assert bool(engine.disabled) == (not started)


@pytest.mark.parametrize("layers", [0, -1, CONFIG.num_layers])
def test_an_exit_outside_the_target_is_refused(layers: int) -> None:
    with pytest.raises(OptionError, match=r"not inside the target\nhint: from 1 to 3"):
        drafter(tiny_runner(), layers=layers)

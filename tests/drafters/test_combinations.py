"""Every drafter, alone and in every combination that takes it, writes plain decoding's text: bit for bit on int8, in batches
of 8, greedy and sampled, with penalties and a grammar.

FirstOf takes retrievers, and one other drafter where none of them has found anything. Route takes retrievers and one drafter
that runs a model, which it asks for requests up to a temperature of 0.5: above it only its retrievers draft. ConfidentChain
looks at one chain, so under Route drafters of trees have a SizedTree. Fuse takes all drafters here: it refuses only those
that run the target's own layers. Lookahead, Lengthened, Cascade, Superposed and Features are no retrievers: they stand last.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch

from draftwood.controllers.estimates.acceptance import NODES, Acceptance, Table
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit, Load
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Drafter, Runner, TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.score import KnownTokens, assemble
from draftwood.drafters.combine.arms import Arm, ConfidentChain, SizedTree
from draftwood.drafters.combine.cascade import Cascade
from draftwood.drafters.combine.first_of import FirstOf
from draftwood.drafters.combine.fuse import Fuse
from draftwood.drafters.combine.route import HOTTEST, Route
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.nets.make_drafter import feature_drafter
from draftwood.drafters.phrases.lengthened import Lengthened
from draftwood.drafters.phrases.lookahead import Lookahead
from draftwood.drafters.retrieval.datastore import Datastore
from draftwood.drafters.retrieval.dense import Dense
from draftwood.drafters.retrieval.max_gram import MaxGram
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.drafters.retrieval.prediction import Prediction
from draftwood.drafters.retrieval.suffix import Suffix
from draftwood.drafters.superposed.drafter import Superposed
from draftwood.drafters.superposed.superposition import Superposition
from draftwood.recipes import autoregressive
from draftwood.testing.contracts import check_drafter
from draftwood.testing.exact import Free
from draftwood.testing.runs import make_engine, serve
from draftwood.train.data.hidden_states import final_states
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from planted_rules import FirstCopy
from small_dense import made_dense
from small_stores import made_store
from walking_model import CIRCLE, V, walking_head, walking_model

COUNT, TOKENS = 20, 14
GIVEN, BEST = Chain(Draw.GIVEN), BestFirst(4)  # without a beam of its own it would follow the widest limit of a batch
TABLE = Table(tuple(0.7 * d for d in range(1, 9)), tuple((0.7 * d,) * len(NODES) for d in range(1, 9)))
CHAINS, TREES = ConfidentChain(4), SizedTree(Acceptance(TABLE, TABLE), ((4, 24),))
MATCH = Match()


class Cheap(Free):
    """A pass over more nodes costs hardly more."""

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        return 1 + 0.002 * tokens


@dataclass(frozen=True)
class WithCosts(Fixed):
    costs: Cheap = field(default_factory=Cheap)

    def plan(self, state: None, rnd: Round, load: Load) -> Limit:
        return replace(Fixed.plan(self, state, rnd, load), cost_model=self.costs)


# --- requests


def alternating(tokens: Any) -> torch.Tensor:
    """Odd and even tokens take turns, as they do in a walk."""
    return torch.arange(V) % 2 != len(tokens) % 2


PENALTIES: dict[str, Any] = {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2}
OPTIONS: tuple[dict[str, Any], ...] = ({}, PENALTIES, {"grammar": alternating}, {"grammar": alternating, **PENALTIES})
PROMPTS = [[CIRCLE * i + (j + i) % CIRCLE for j in range(3 + i % 7)] for i in range(COUNT)]


def params(temperature: float) -> list[SamplingParams]:
    return [
        SamplingParams(temperature=temperature, seed=i, max_tokens=TOKENS, ignore_eos=True, **OPTIONS[i % 4])
        for i in range(COUNT)
    ]


def served(target: Runner, recipe: Recipe, each: list[SamplingParams]) -> list[Request]:
    """In eight slots; requests come while others decode."""
    return serve(
        make_engine(target, recipe, slots=8, chunk=24), PROMPTS, each, arrive={i: i // 2 for i in range(COUNT)}
    )


# --- drafters


@dataclass(frozen=True)
class World:
    """The target, and what drafters find beside it: texts with every sixth token another one."""

    target: Runner
    temperature: float
    texts: list[list[int]]
    datastore: Datastore
    dense: Dense

    @property
    def small(self) -> DraftModel:
        return DraftModel(self.target.first_layers(1))  # type: ignore[attr-defined]

    @property
    def head(self) -> Drafter:
        return feature_drafter(walking_head(self.target), self.target)

    @property
    def params(self) -> list[SamplingParams]:
        """With spoiled answers as predictions."""
        each = zip(params(self.temperature), PROMPTS, self.texts, strict=True)
        return [replace(p, prediction=tuple(spoiled(prompt + text)[len(prompt) :])) for p, prompt, text in each]


def spoiled(text: list[int]) -> list[int]:
    return [(t + 7) % V if i % 6 == 5 else t for i, t in enumerate(text)]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[float], World]:
    folder = tmp_path_factory.mktemp("worlds")
    target = walking_model(folder / "model")

    @cache
    def world(temperature: float) -> World:
        texts = [r.output for r in served(target, autoregressive.build(target), params(temperature))]
        documents = [spoiled(prompt + text) for prompt, text in zip(PROMPTS, texts, strict=True)]
        store = made_store(folder / f"{temperature}.store", documents, V)
        dense = made_dense(
            folder / f"{temperature}.dense", documents, read=final_states(target), info=target.info, dims=16
        )
        return World(target, temperature, texts, Datastore(store), Dense(dense))

    return world


@dataclass(frozen=True)
class Case:
    """A drafter, its policy, and the arm that it has under Route; None: it is a retriever."""

    make: Callable[[World], Any]
    arm: Arm | None = None
    policy: TreePolicy = GIVEN


DRAFTERS: dict[str, Case] = {
    "NGram": Case(lambda w: NGram(n_min=1)),
    "Suffix": Case(lambda w: Suffix(mode="tree", factor=2.0)),
    "Datastore": Case(lambda w: w.datastore),
    "Dense": Case(lambda w: w.dense),
    "MaxGram": Case(lambda w: MaxGram(min_match=1)),
    "Prediction": Case(lambda w: Prediction()),
    "Lookahead": Case(lambda w: Lookahead(ngram=4, width=3, guesses=3), TREES),
    "Lengthened": Case(lambda w: Lengthened(w.small, length=2, phrase=2, count=2), TREES),
    "Cascade": Case(lambda w: Cascade((w.small,), ((3, 3), (0, 3)), copier=MaxGram(1)), CHAINS),
    "Superposed": Case(lambda w: Superposed(w.small, Superposition()), TREES, BEST),
    "Features": Case(lambda w: w.head, CHAINS),
    "Features, a tree": Case(lambda w: w.head, TREES, BEST),
    "RASD's fusion": Case(lambda w: Fuse((w.head, NGram(n_min=1), w.datastore), 8, prune=True), TREES, BEST),
}


def alone(case: Case, world: World) -> Drafter:
    return case.make(world)


def first_of(case: Case, world: World) -> Drafter:
    if case.arm is None:
        return FirstOf((case.make(world), NGram(n_min=3)), world.small)
    return FirstOf((NGram(n_min=3), MaxGram(3)), case.make(world))


def fused(case: Case, world: World) -> Drafter:
    return Fuse((case.make(world), NGram(n_min=2), MaxGram(2)), 6)


def fused_behind(case: Case, world: World) -> Drafter:
    """The other way round: the drafter's nodes stand beside those of another one."""
    return Fuse((MaxGram(3), case.make(world)), 12)


def routed(case: Case, world: World) -> Drafter:
    if case.arm is None:
        return Route((case.make(world), NGram(n_min=3)), world.small, CHAINS)
    return Route((NGram(n_min=3),), case.make(world), case.arm)


def routed_together(case: Case, world: World) -> Drafter:
    return replace(routed(case, world), fuse=True)  # type: ignore[type-var]


# Each way, and the number that the drafter's tokens have in it: that of a retriever, and of any other.
WAYS: dict[str, tuple[Callable[[Case, World], Any], int, int]] = {
    "alone": (alone, 0, 0),
    "FirstOf": (first_of, 0, 2),
    "Fuse": (fused, 0, 0),
    "Fuse, second": (fused_behind, 1, 1),
    "Route": (routed, 0, 1),
    "Route, fused": (routed_together, 0, 1),
}


def ran(name: str, way: str, world: World, rule: Any = MATCH) -> list[Request]:
    case = DRAFTERS[name]
    drafter = WAYS[way][0](case, world)
    recipe = Recipe(drafter=drafter, policy=case.policy, verifier=rule, controller=WithCosts(6, 24))
    return served(world.target, recipe, world.params)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_text_is_plain_decodings(worlds: Callable[[float], World], name: str, temperature: float) -> None:
    """Tokens of the drafter are accepted in every combination that asks it, and with each drafter rounds occur in which all,
    some and none of a draft are accepted."""
    world, counts = worlds(temperature), [0, 0, 0]
    for way, (_, *numbers) in WAYS.items():
        asked = DRAFTERS[name].arm is None or not way.startswith("Route") or temperature <= HOTTEST
        if not asked and way == "Route, fused":
            continue  # as Route
        done = ran(name, way, world)
        assert [r.output for r in done] == world.texts, way
        assert {r.stats.disabled for r in done} == {None}, way
        rounds = [sum(getattr(r.stats, f"rounds_{kind}") for r in done) for kind in ("all", "some", "none")]
        counts = [a + b for a, b in zip(counts, rounds, strict=True)]
        own = sum(r.sources.count(numbers[DRAFTERS[name].arm is not None]) for r in done)
        print(f"{name}, {way}, temperature {temperature:g}: all, some, none accepted {rounds}; own tokens {own}")
        assert bool(own) == asked, way
    print(f"{name}, temperature {temperature:g}: all, some, none accepted {counts}")
    assert min(counts) > 0, counts


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", ["alone", "Fuse", "Route"])
def test_a_rule_that_takes_a_drafted_token_unseen_is_found(worlds: Callable[[float], World], way: str) -> None:
    """The twin."""
    for temperature in (0.0, 1.0):
        world = worlds(temperature)
        assert [r.output for r in ran("Datastore", way, world, FirstCopy())] != world.texts


# --- the contract of drafters


@dataclass(frozen=True)
class Begun:
    """A drafter that has been shown the target's pass over all known tokens but the root, whoever ran last."""

    drafter: Any
    target: Any

    def init(self, slots: int) -> Any:
        return self.drafter.init(slots)

    def free(self, state: Any, slots: Any) -> None:
        self.drafter.free(state, slots)

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        runner, slots = self.target.open(8, 64), rnd.host_slots
        self.drafter.free(state, slots)
        texts = [r.known_from(0, r.num_known - 1) for r in rnd.requests]
        for slot, text, request in zip(slots, texts, rnd.requests, strict=True):
            runner.admit(slot, text)
            self.drafter.admit(state, slot, request)
        chains = [KnownTokens(slot, 0, text) for slot, text in zip(slots, texts, strict=True)]
        last = torch.tensor([text[-1] for text in texts])
        x, _, _ = assemble(chains, Proposal.roots(last).tree)
        with torch.inference_mode():
            output = runner.execute(x, taps=self.drafter.needs.taps)
            begun = Round(rnd.slots, rnd.lengths - 1, rnd.requests)
            self.drafter.begin(state, begun, replace(output, tokens=x))
            return self.drafter.propose(state, rnd, base, replace(limit, cost_model=Free()), policy)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_contract_of_drafters_holds_in_every_combination(worlds: Callable[[float], World], name: str) -> None:
    world, case = worlds(0.0), DRAFTERS[name]
    for make, *_ in WAYS.values():
        drafter: Any = Begun(make(case, world), world.target)
        check_drafter(drafter, case.policy, V, temperature=0.0, prediction=tuple(range(9)))

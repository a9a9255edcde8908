"""The draft that pays is chosen, for each sequence and every round, and the text is plain decoding's whatever is chosen."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from device_runs import Ran, ran
from draftwood.controllers.estimates.acceptance import NODES, Acceptance, Table
from draftwood.controllers.fixed import Fixed
from draftwood.core.limit import Limit, Load
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Times
from draftwood.drafters.combine.arms import Arm, ConfidentChain, SizedTree
from draftwood.drafters.combine.fusion import Drafted
from draftwood.drafters.combine.route import Route
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.errors import DrafterError
from draftwood.recipes import autoregressive
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.contracts import check_drafter, toy_round
from draftwood.testing.parts.oracle_drafter import NoisyOracle, Replay
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match

V = CONFIG.vocab_size


@dataclass(frozen=True)
class Costs:
    """Fixed costs: of a pass for every token beyond the first, and of a draft for every level."""

    token: float = 0.1
    level: float = 0.1

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        return 1 + self.token * (tokens - 1)

    def draft_seconds(self, passes: int, nodes: int | None = None) -> float:
        return self.level * passes

    def rest_seconds(self) -> float:
        return 0.0

    def observe(self, times: Times) -> None:
        return None


@dataclass(frozen=True)
class Priced(Fixed):
    """Fixed limits with fixed costs."""

    costs: Costs = field(default_factory=Costs)

    def plan(self, state: None, rnd: Round, load: Load) -> Limit:
        return replace(Fixed.plan(self, state, rnd, load), cost_model=self.costs)


CHAIN, USUAL = ConfidentChain(), Costs()


def route(model: Any = None, arm: Arm = CHAIN, costs: Costs = USUAL, nodes: int = 8, fuse: bool = False) -> Recipe:
    return Recipe(
        drafter=Route((NGram(),), model, arm, fuse=fuse),
        policy=BestFirst(),
        verifier=Match(),
        controller=Priced(6, nodes, costs=costs),
    )


CHEAP = Costs(token=0.005, level=0.02)
MODEL = tiny_decoder(2)
TEXTS = [[1, 2, 3, 1, 2, 4 + i, 1, 2] for i in range(8)]


def params(temperature: float, tokens: int = 24, **more: Any) -> list[SamplingParams]:
    return [SamplingParams(seed=i, max_tokens=tokens, temperature=temperature, **more) for i in range(len(TEXTS))]


def answers(options: list[SamplingParams]) -> dict[tuple[int, ...], list[int]]:
    plain = ran(CpuRunner(MODEL), autoregressive.build, TEXTS, options)
    return {tuple(prompt): text for prompt, text in zip(TEXTS, plain.texts, strict=True)}


def drafts(known: Mapping[tuple[int, ...], list[int]], arm: str) -> Replay | NoisyOracle:
    """A model that drafts what its arm asks for: one chain, every fifth token of it wrong, or a tree."""
    return Replay(known, V) if arm == "chain" else NoisyOracle(known, V)


@dataclass(frozen=True)
class Unsure(Replay):
    """A chain with these probabilities, the last of them repeated."""

    probs: tuple[float, ...] = (0.5,)

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        made = super().propose(state, rnd, base, limit, policy)
        size = made.tree.num_nodes - 1
        each = torch.tensor([*self.probs, *[self.probs[-1]] * size][:size])
        score = torch.cat([torch.zeros(1), each.log().cumsum(0)])
        return replace(made, tree=replace(made.tree, score=score.expand_as(made.tree.score)))


def sources(run: Ran) -> set[int]:
    return {source for r in run.requests for source in r.sources}


TABLE = Table(tuple(0.7 * d for d in range(1, 9)), tuple((0.7 * d,) * len(NODES) for d in range(1, 9)))
ARMS: dict[str, Arm] = {
    "chain": ConfidentChain(),
    "tree": SizedTree(Acceptance(TABLE, TABLE), ((1, 1), (2, 2), (4, 4), (4, 6))),
}


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize(
    ("temperature", "more"),
    [(0.0, {}), (0.4, {}), (0.0, {"repetition_penalty": 1.3}), (0.4, {"presence_penalty": 0.5, "top_p": 0.9})],
    ids=str,
)
@pytest.mark.slow
def test_every_text_is_plain_decodings_and_every_drafter_has_its_part(
    arm: str, temperature: float, more: dict[str, Any], fuse: bool
) -> None:
    options = params(temperature, **more)
    known = answers(options)
    found = ran(CpuRunner(MODEL), lambda _: route(drafts(known, arm), ARMS[arm], CHEAP, 12, fuse), TEXTS, options)
    assert found.texts == list(known.values())
    assert found.disabled == {None}
    assert min(found.accepted) > 0, found.accepted
    assert 1 in sources(found), "the model drafted"


def test_requests_at_a_high_temperature_are_not_shown_to_the_model() -> None:
    options = [replace(p, temperature=0.0 if i % 2 else 1.1) for i, p in enumerate(params(1.0))]
    known = answers(options)

    class Shown(NoisyOracle):
        def admit(self, state: Any, slot: int, request: Any) -> int:
            assert request.params.greedy
            return super().admit(state, slot, request)

    found = ran(CpuRunner(MODEL), lambda _: route(Shown(known, V), CHAIN, CHEAP), TEXTS, options)
    assert found.texts == list(known.values()) and found.disabled == {None}
    by_request = [set(r.sources) for r in found.requests]
    assert all(1 not in each for each in by_request[::2]) and any(1 in each for each in by_request[1::2])


@pytest.mark.one_in(5)
@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("arm", ARMS)
def test_a_device_is_read_once_a_round_and_gives_the_same_text(arm: str, fuse: bool) -> None:
    options = params(0.0)
    known = answers(options)
    found = ran(CudaRunner(MODEL), lambda _: route(drafts(known, arm), ARMS[arm], CHEAP, 12, fuse), TEXTS, options)
    assert found.texts == list(known.values())
    assert found.read_once(), found.by_round()
    assert found.disabled == {None} and min(found.accepted) > 0


def proposed(recipe: Recipe, texts: list[list[int]], state: Any = None) -> tuple[Proposal, Any]:
    rnd = toy_round(texts, V, temperature=0.0)
    state = recipe.drafter.init(len(texts)) if state is None else state
    for slot, request in enumerate(rnd.requests):
        recipe.drafter.admit(state, slot, request)
    limit = Limit.of([6] * len(texts), [8] * len(texts), cost_model=recipe.controller.costs)  # type: ignore[attr-defined]
    return recipe.drafter.propose(state, rnd, Proposal.roots(rnd.roots()), limit, recipe.policy), state


LONG = [*range(1, 13), *range(1, 9)]  # the last eight tokens stood here before
NEW = [*range(20, 40)]  # nothing stood here before


def test_a_long_match_is_copied_and_new_text_is_drafted_by_the_model() -> None:
    found, _ = proposed(route(Replay({}, V)), [LONG, NEW])
    assert found.tree.source[0, found.tree.live[0]].tolist()[1:] == [0] * (int(found.tree.live[0].sum()) - 1)
    assert found.tree.tokens[0, 1:4].tolist() == [9, 10, 11]
    assert set(found.tree.source[1, found.tree.live[1]].tolist()[1:]) == {1}


def test_no_more_is_copied_than_pays() -> None:
    sizes = [int(proposed(route(costs=Costs(token=t)), [LONG])[0].tree.live.sum()) - 1 for t in (0.01, 0.3, 0.7, 3.0)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] >= 4 and sizes[-1] == 0


def test_nothing_is_drafted_where_nothing_pays() -> None:
    found, _ = proposed(route(Replay({}, V), costs=Costs(token=0.1, level=5.0)), [NEW])
    assert int(found.tree.live.sum()) == 1


def test_a_model_that_is_always_wrong_is_left_and_tried_again_later() -> None:
    options = SamplingParams(max_tokens=120, temperature=0.0)
    asked: list[int] = []

    class Wrong(Replay):
        def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
            asked.append(len(rnd.requests[0].output))
            return super().propose(state, rnd, base, limit, policy)

    recipe = route(Wrong({}, V, spoil=10**9), costs=Costs(token=0.1, level=0.1))
    run = ran(CpuRunner(MODEL), lambda _: recipe, [NEW[:5]], options, capacity=256)
    plain = ran(CpuRunner(MODEL), autoregressive.build, [NEW[:5]], options, capacity=256)
    assert run.texts == plain.texts
    rounds = len(run.decoding)
    assert len(asked) < rounds / 2, f"{len(asked)} of {rounds} rounds"
    assert any(place > 60 for place in asked), "and it gets another chance"


def test_the_contract_of_drafters() -> None:
    recipe = route()

    class Costly(Route):
        def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
            return super().propose(state, rnd, base, replace(limit, cost_model=Costs(token=0.0)), policy)

    # What pays depends on how many sequences share a pass, unless tokens cost nothing.
    check_drafter(Costly((NGram(),)), recipe.policy, 5)


def test_without_costs_it_says_what_is_missing() -> None:
    recipe = route()
    rnd = toy_round([NEW], V)
    with pytest.raises(DrafterError, match="Priced"):
        recipe.drafter.propose(
            recipe.drafter.init(1), rnd, Proposal.roots(rnd.roots()), Limit.of([2], [2]), recipe.policy
        )


def test_nothing_is_left_of_a_slot_that_was_freed() -> None:
    recipe = route(Replay({}, V))
    _, state = proposed(recipe, [LONG, NEW])
    state.survival[0][0].learn(0, 0.5, False)
    recipe.drafter.free(state, [0, 1])
    assert not state.choices and not state.survival[0][0].shifts
    assert torch.equal(proposed(recipe, [LONG], state)[0].tree.tokens, proposed(recipe, [LONG])[0].tree.tokens)


def test_costs_are_looked_up_again_for_a_larger_budget() -> None:
    recipe = route()
    state = recipe.drafter.init(1)
    for budget in (1, 8):  # the last round of a long text, then a new text
        rnd = toy_round([LONG], V, temperature=0.0)
        limit = Limit.of([6], [budget], cost_model=Costs(token=0.01))
        found = recipe.drafter.propose(state, rnd, Proposal.roots(rnd.roots()), limit, recipe.policy)
        assert 1 < int(found.tree.live.sum()) <= 1 + budget


def test_copies_may_have_a_limit_of_their_own() -> None:
    recipe = route()
    rnd = toy_round([LONG], V, temperature=0.0)
    limit = Limit.of([6], [8], cost_model=Costs(token=0.01))
    for nodes in (0, 1, 2):
        drafter = Route((NGram(),), copies=(6, nodes))
        found = drafter.propose(drafter.init(1), rnd, Proposal.roots(rnd.roots()), limit, recipe.policy)
        assert int(found.tree.live.sum()) == 1 + nodes


def test_where_a_pass_has_room_for_both_copies_stand_beside_the_models_chain() -> None:
    """In new text only the model drafts; behind a long match both do, and each node has its source."""
    cheap = Costs(token=0.001, level=0.001)
    model = Unsure({tuple(text): [40, 41, 42, 43] for text in (LONG, NEW)}, V, spoil=10**9)
    recipe = route(model, costs=cheap, fuse=True)
    state = recipe.drafter.init(2)
    right, request = (
        Drafted([5] * 4, [0, 1, 2, 3], [0.5] * 4, [0.5] * 4, [0] * 4, 4),
        toy_round([LONG], V, temperature=0.0),
    )
    for _ in range(40):  # chains that are always right are worth drafting
        recipe.drafter.arm.learn(state.arm, 0, request.requests[0], right, [5] * 5, (4, 4))  # type: ignore[attr-defined]
    tree = proposed(recipe, [LONG, NEW], state)[0].tree
    assert set(tree.source[0, tree.live[0]].tolist()[1:]) == {0, 1}
    assert set(tree.source[1, tree.live[1]].tolist()[1:]) == {1}


def test_tokens_that_the_model_is_unsure_of_are_drafted_and_not_scored() -> None:
    found, _ = proposed(route(Unsure({}, V, probs=(0.9, 0.02)), costs=Costs(token=0.1, level=0.01)), [NEW])
    assert int(found.tree.live.sum()) - 1 == 1

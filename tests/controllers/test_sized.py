"""The size follows cost and acceptance, the output stays the target's, and nothing is drafted where nothing pays."""

from dataclasses import dataclass
from typing import Any

import pytest

from draftwood.controllers.estimates.acceptance import NODES, Acceptance, Size, Table
from draftwood.controllers.sized import Sized
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit, Load
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Times
from draftwood.engine.engine import Engine
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.contracts import check_controller, toy_round
from draftwood.testing.exact import Free, joint_error, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, context_free, near, random_probs
from draftwood.testing.runs import make_engine
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

V = 5
SIZES: tuple[Size, ...] = ((1, 1), (2, 2), (4, 4), (2, 4), (4, 12))


def acceptance(chance: float) -> Acceptance:
    chains = tuple(sum(chance**k for k in range(1, d + 1)) for d in range(1, 9))
    trees = tuple(tuple(min(c * (1 + 0.08 * i), d + 1) for i in range(len(NODES))) for d, c in enumerate(chains))
    return Acceptance(Table(chains, trees), Table(chains, trees))


@dataclass
class Costs:
    """Fixed costs, in any unit: a pass has a base and a price per token, a draft a price per level."""

    token: float
    level: float

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        return 1 + self.token * tokens

    def draft_seconds(self, passes: int, nodes: int | None = None) -> float:
        return self.level * passes

    def rest_seconds(self) -> float:
        return 0.0

    def observe(self, times: Times) -> None:
        return None


def run(costs: Costs, chance: float, drafts: Any, rounds: int = 60) -> tuple[list[Size], list[int]]:
    """The sizes that were planned round by round for one sequence of a cyclic text, and its tokens."""
    cyclic = CpuRunner(TableModel(V, lambda text: [float(t == (text[-1] + 1) % V) for t in range(V)]))
    controller = Sized(acceptance(chance), SIZES, costs)
    recipe = Recipe(drafter=TableDrafter(drafts), policy=BestFirst(), verifier=Match(), controller=controller)
    engine: Engine = make_engine(cyclic, recipe, slots=1, capacity=2048)
    request = Request(0, [0], SamplingParams(max_tokens=1000), V)
    engine.add(request)
    sizes: list[Size] = []
    for _ in range(rounds):
        engine.step()
        sizes.append(engine.controller_state.size)
    return sizes, request.output


def right(text: tuple[int, ...]) -> list[float]:
    return [0.9 if t == (text[-1] + 1) % V else 0.025 for t in range(V)]


def wrong(text: tuple[int, ...]) -> list[float]:
    return [0.9 if t == text[-1] else 0.025 for t in range(V)]


def test_free_tokens_give_large_trees_and_dear_ones_small_ones() -> None:
    assert run(Costs(token=0.0, level=0.0), 0.6, right, rounds=1)[0] == [(4, 12)]
    assert run(Costs(token=0.6, level=0.05), 0.6, right, rounds=1)[0] == [(1, 1)]


def test_where_nothing_pays_nothing_is_drafted() -> None:
    sizes, _ = run(Costs(token=0.0, level=3.0), 0.6, wrong)
    assert sizes.count((0, 0)) >= 50, "now and then a size is tried"


def test_a_draft_that_does_better_than_its_profile_gets_longer_and_one_that_does_worse_stops() -> None:
    costs = Costs(token=0.1, level=0.2)
    better, worse = (run(costs, 0.5, drafts, rounds=90)[0] for drafts in (right, wrong))
    assert better[0] == worse[0] != (0, 0)
    assert better[-30:].count((4, 4)) > 22 and worse[-30:].count((0, 0)) > 22


def test_text_is_that_of_the_target_whatever_is_chosen() -> None:
    for drafts in (right, wrong):
        _, tokens = run(Costs(0.05, 0.1), 0.5, drafts)
        assert tokens == [(1 + i) % V for i in range(len(tokens))]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("drafts", ["near", "far"])
def test_sampled_output_has_the_targets_distribution_while_sizes_change(drafts: str) -> None:
    """Sizes are chosen from finished rounds only; here every round chooses anew. One branch at a time: what a batch gets
    depends on all its sequences."""
    p = random_probs(3, 3)
    q = near(p, 3, 5, 0.5) if drafts == "near" else context_free((0.1, 0.1, 0.8))
    used: set[Size] = set()

    class Noting(Sized):
        def plan(self, state: Any, rnd: Round, load: Load) -> Limit:
            limit = super().plan(state, rnd, load)
            used.add(state.size)
            return limit

    def recipe() -> Recipe:
        sized = Noting(acceptance(0.5), ((1, 1), (2, 2)), Costs(0.1, 0.2), step=60.0, every=1)
        return Recipe(drafter=TableDrafter(q), policy=Chain(Draw.IID), verifier=Rejection(), controller=sized)

    assert joint_error(leaves(TableModel(3, p), recipe, tokens=3, width=1), p, 3, 3) < 1e-12
    assert len(used) > 1


def test_contract() -> None:
    check_controller(Sized(acceptance(0.5), SIZES, Costs(0.1, 0.1)))


def test_the_next_request_in_the_same_slot_begins_anew() -> None:
    controller = Sized(acceptance(0.5), SIZES, Costs(0.1, 0.2))
    rnd, load = toy_round([[1]], V), Load(cost_model=Free(), batch_size=1, waiting=0, context=1)
    state = controller.init(1)
    controller.plan(state, rnd, load)
    state.shifts.own[0].value, state.left = -4.0, 5  # nothing of the first request was accepted
    controller.free(state, [])
    controller.plan(state, rnd, load)
    assert state.left == 4, "nothing was freed, nothing is chosen again"
    controller.free(state, [0])
    controller.plan(state, rnd, load)
    assert state.shifts.own[0].value == 0.0 and state.left == controller.every - 1

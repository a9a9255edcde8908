"""What a round teaches: what was accepted of the text, and nothing of what stood behind its end."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from draftwood import controllers
from draftwood.controllers.budget import Budget
from draftwood.controllers.by_temperature import ByTemperature
from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.estimates.acceptance import NODES, Acceptance, Table
from draftwood.controllers.fixed import Fixed
from draftwood.controllers.goodput import Goodput
from draftwood.controllers.sized import Sized
from draftwood.controllers.stopping.confidence import AdaptiveConfidence, Confident
from draftwood.controllers.stopping.learned_stop import LearnedStop
from draftwood.controllers.stopping.predicted_length import PredictedLength
from draftwood.controllers.stopping.rejection_risk import RejectionRisk
from draftwood.controllers.stopping.thompson import BetaThompson, CalibratedThompson
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Load
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import HostVerdict, Outcome, Times, Verdict
from draftwood.testing.contracts import toy_round
from draftwood.testing.exact import Free
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel
from draftwood.testing.runs import make_engine
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from every_rule import parts_of

DEPTH = 4
CHANCES = tuple(sum(0.6**k for k in range(1, d + 1)) for d in range(1, 9))
TABLE = Table(CHANCES, tuple(tuple(min(c, d + 1.0) for _ in NODES) for d, c in enumerate(CHANCES)))
FREE = Free()
CONTROLLERS: list[Any] = [
    Fixed(DEPTH),
    Confident(DEPTH),
    LearnedStop(DEPTH, DEPTH, lambda hidden: hidden[..., 0]),
    RejectionRisk(DEPTH, lambda hidden: hidden[..., 0], 0.5),
    Priced(DEPTH, DEPTH),
    Budget(Fixed(DEPTH - 1)),  # learns of nodes that were scored; here there are none
    CalibratedThompson(DEPTH),  # learns only of drafts that asked it; this one is made by hand
    Sized(Acceptance(TABLE, TABLE), ((DEPTH, DEPTH), (1, 1)), FREE),
    AdaptiveConfidence(DEPTH),
    BetaThompson(DEPTH),
    Goodput(DEPTH, plain=False),
]
LEARNING = CONTROLLERS[7:]
# It remembers where texts end and counts nothing; without an origin it drafts nothing.
# What is by temperature learns of greedy rounds alone.
ALL = [
    *CONTROLLERS,
    PredictedLength(DEPTH, lambda embedding, feature: embedding[..., 0]),
    ByTemperature(Fixed(DEPTH), ((1.0, DEPTH),)),
]


def name(x: Any) -> str:
    return type(x).__name__


def outcome(count: int, clipped: int | None, deepest: int = DEPTH, nodes: int = DEPTH) -> Outcome:
    """A chain of which the rule accepted `count` tokens and the stop conditions left `clipped` of all it emitted."""
    path = list(range(count + 1))
    verdict = Verdict(torch.tensor([path]), torch.tensor([count]), torch.tensor([0]), HostVerdict([path], [0]))
    bare = Proposal.roots(torch.tensor([1]))
    kept = () if clipped is None else (clipped,)
    return Outcome(bare, verdict, torch.tensor([path]), Times(), (nodes,), (deepest,), clipped=kept)


def learned(controller: Any, outcomes: list[Outcome]) -> str:
    """All that a controller remembers after these rounds of one sequence."""
    state, rnd = controller.init(1), toy_round([[1]], 5)
    for each in outcomes:
        limit = controller.plan(state, rnd, Load(cost_model=FREE, batch_size=1, waiting=0, context=1))
        assert limit.depths != (0,), "something is drafted"
        controller.update(state, rnd, each)
    return repr(state)


def test_no_controller_is_left_out() -> None:
    assert {name(x) for x in ALL} == {x.__name__ for x in parts_of(controllers, "plan", "update", "free")}


@pytest.mark.parametrize(
    ("count", "clipped", "accepted", "judged"),
    [
        (3, None, 3, 4),  # nothing is known of a cut
        (3, 4, 3, 4),  # nothing was cut
        (3, 3, 3, 3),  # an accepted end: the next token was cut, and the level below was judged behind the end
        (3, 1, 1, 1),
        (0, 1, 0, 4),  # the target's own token was the end
        (4, 4, 4, 4),
        (2, 0, 0, 0),  # the request had ended before anything was emitted
    ],
)
def test_tokens_count_up_to_the_cut_and_levels_below_it_do_not(
    count: int, clipped: int | None, accepted: int, judged: int
) -> None:
    made = outcome(count, clipped)
    assert (made.accepted, made.judged) == ([accepted], [judged])


@pytest.mark.parametrize("controller", CONTROLLERS, ids=name)
def test_what_was_accepted_behind_the_end_of_a_text_teaches_nothing(controller: Any) -> None:
    assert len({learned(controller, [outcome(count, 1)]) for count in (1, 2, 3, 4)}) == 1
    assert learned(controller, [outcome(4, 0)]) == learned(controller, [outcome(0, 0)])


@pytest.mark.parametrize("controller", LEARNING, ids=name)
def test_a_controller_that_counts_it_is_caught(controller: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the test above."""
    monkeypatch.setattr(Outcome, "accepted", property(lambda self: self.verdict.count.tolist()))
    monkeypatch.setattr(Outcome, "judged", property(lambda self: list(self.deepest)))
    assert len({learned(controller, [outcome(count, 1)]) for count in (1, 2, 3, 4)}) > 1


@pytest.mark.parametrize("controller", LEARNING, ids=name)
def test_an_end_that_was_accepted_is_no_rejection_of_what_follows(controller: Any) -> None:
    assert learned(controller, [outcome(1, 1)]) != learned(controller, [outcome(1, 2)])


def test_a_cut_draft_is_expected_to_yield_what_its_levels_do() -> None:
    """Otherwise every end would look like a hard text."""
    controller = LEARNING[0]

    def shift(made: Outcome) -> float:
        state, rnd = controller.init(1), toy_round([[1]], 5)
        controller.plan(state, rnd, Load(cost_model=FREE, batch_size=1, waiting=0, context=1))
        controller.update(state, rnd, made)
        return state.shifts.shared.value

    assert shift(outcome(1, 1)) > 0 > shift(outcome(1, 2)), "one of one, and one of four"


def bias(chance: float, end: float, learn: Callable[[int, int, int], tuple[int, int] | None]) -> float:
    """What a controller learns on average per round, (accepted - expected), if it expects what is true: by enumeration of
    texts that end at each position with probability `end`, whether drafted or not, and of drafts that are right with
    `chance`. `learn`: (accepted tokens, tokens that survived, levels) -> what it counts as accepted, of how many levels."""

    def expected(levels: int) -> float:
        return sum(chance**k for k in range(1, levels + 1))

    total = 0.0
    rest = 1.0  # reached so far without an end
    for level in range(DEPTH):
        events = [(rest * (1 - chance), level, level + 1)]  # rejected here; the end of the text or not, nothing is cut
        if level + 1 < DEPTH:
            # An accepted end. Of what the rule made of the levels below, nothing is known; say that it rejected the next.
            events.append((rest * chance * end, level + 1, level + 1))
            rest *= chance * (1 - end)
        else:
            events.append((rest * chance, DEPTH, DEPTH + 1))
        for prob, count, kept in events:
            found = learn(count, kept, DEPTH)
            if found is not None:
                total += prob * (found[0] - expected(found[1]))
    return total


def test_of_the_ways_to_count_a_cut_round_this_one_errs_least() -> None:
    def shipped(count: int, kept: int, levels: int) -> tuple[int, int]:
        made = outcome(count, kept, levels)
        return made.accepted[0], made.judged[0]

    ways = (
        shipped,
        lambda count, kept, levels: (count, levels),  # levels behind the end are rejected ones
        lambda count, kept, levels: (count, levels) if kept > count else None,  # rounds that were cut are left out
    )
    for chance in (0.3, 0.6, 0.9):
        ours, *others = (abs(bias(chance, 0.05, way)) for way in ways)
        assert ours < min(others)
        assert abs(bias(chance, 0.0, shipped)) < 1e-12


@pytest.mark.parametrize("controller", ALL, ids=name)
def test_no_controller_looks_at_a_device(controller: Any) -> None:
    state, rnd = controller.init(1), toy_round([[1]], 5)
    assert (rnd.host_slots, rnd.host_lengths) == ([0], [1])  # read here, as the engine has them
    load = Load(cost_model=FREE, batch_size=1, waiting=0, context=1)
    with as_if_on_a_device(), HostReads() as reads:
        for count in (1, 4, 0):
            controller.plan(state, rnd, load)
            controller.update(state, rnd, outcome(count, count))
        controller.free(state, [0])
    assert reads.total == 0, reads.by_name


def test_the_engine_says_where_it_cut() -> None:
    """A draft that is always right, and an end in the middle of it."""
    seen: list[Outcome] = []

    class Noting(Fixed):
        def update(self, state: None, rnd: Round, outcome: Outcome) -> None:
            seen.append(outcome)

    def cyclic(text: tuple[int, ...]) -> list[float]:
        return [float(t == (text[-1] + 1) % 5) for t in range(5)]

    recipe = Recipe(drafter=TableDrafter(cyclic), policy=Chain(Draw.GIVEN), verifier=Match(), controller=Noting(DEPTH))
    engine = make_engine(TableModel(5, cyclic).runner(), recipe, slots=1)
    engine.add(Request(0, [0], SamplingParams(max_tokens=50), 5, eos=(3,)))
    while engine.has_work:
        engine.step()
    (made,) = seen
    assert made.verdict.count.tolist() == [4] and made.clipped == (3,)
    assert (made.accepted, made.judged) == ([3], [3])

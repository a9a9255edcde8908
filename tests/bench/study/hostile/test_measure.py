"""A recipe that drafts rubbish is flagged, one that decodes plainly is not, and every text is plain decoding's."""

from dataclasses import dataclass, replace
from time import sleep
from typing import Any

import pytest

from draftwood.bench.spec.text_equality import Difference
from draftwood.bench.statistics import Ratio
from draftwood.bench.study.hostile.faults import Switch
from draftwood.bench.study.hostile.measure import FLOOR, Row, Side, measure, row_of
from draftwood.bench.study.hostile.workloads import NAMES, Workload, workload
from draftwood.bench.study.hostile.worst_stretch import Stretch
from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.drafters.stateless import Stateless
from draftwood.errors import OptionError
from draftwood.models.loading.load import Loaded, load
from draftwood.recipes import build
from draftwood.runners.open import runner_of
from draftwood.testing.folder import write_folder
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(write_folder(tmp_path_factory.mktemp("model"), max_positions=2048)))


def made(loaded: Loaded, name: str, count: int = 2, max_tokens: int = 12) -> Workload:
    """Ends are ignored, because the tiny model may end anywhere."""
    found = workload(name, loaded, count, max_tokens, seed=3)
    return replace(found, params=replace(found.params, ignore_eos=True))


@dataclass(frozen=True, slots=True)
class Rubbish(Stateless):
    """Four tokens without any reason, and not for nothing."""

    needs: Needs = Needs()
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        sleep(0.003)
        size = max(limit.depths)
        return base.with_given([[1] * size], [[*range(size)]], [[-float(i) for i in range(size)]])


def recipe_of(drafter: Any, depth: int) -> Recipe:
    return Recipe(drafter=drafter, policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(depth))


def test_a_recipe_that_always_drafts_rubbish_is_flagged(loaded: Loaded) -> None:
    (row,) = measure(loaded, recipe_of(Rubbish(), 4), [made(loaded, "random-text", 3, 40)])
    assert row.worst is not None and row.worst.ratio < FLOOR and row.worst.rounds > 50
    assert row.speed is not None and row.speed.high is not None and row.speed.high < FLOOR
    assert [why.partition(" rounds")[1] or why for why in row.failures] == ["the whole run", " rounds"]
    assert row.rounds[2] > 50 and row.identical == row.answers == 3
    assert row.drafting[0] is not None and row.drafting[0] > 0.9  # before the last token there is nothing to draft


def test_a_recipe_that_never_drafts_has_no_round_with_a_draft(loaded: Loaded) -> None:
    (row,) = measure(loaded, recipe_of(Rubbish(), 0), [made(loaded, "random-text", 2, 40)])
    assert row.rounds == [0, 0, 0] and row.drafting == (0.0, None) and row.decoding == 78
    assert row.worst is not None and row.plain_round is not None
    assert {(tokens, passes, emitted) for _, tokens, passes, emitted, _ in row.trace} == {(1, 0, 1)}


def test_auto_writes_plain_decoding_s_text_on_every_workload(loaded: Loaded) -> None:
    several = [made(loaded, name) for name in NAMES]
    found = list(measure(loaded, "auto", several, slow=1.5))
    assert [row.workload for row in found] == list(NAMES)
    for row, each in zip(found, several, strict=True):
        assert row.identical == row.answers == 2 * each.batch and not row.wrong and not row.disabled
        assert row.tokens == row.answers * each.params.max_tokens
        assert (row.drafting[1] is not None) == (each.fault is not None)
        assert row.speed is not None and row.speed.pairs == 2
        assert row.record()["failures"] == row.failures and len(row.trace) == row.decoding
    assert {row.decoding for row in found if row.workload.startswith("one-token")} == {0}


def test_a_fault_is_there_from_the_middle_of_each_answer_on(loaded: Loaded) -> None:
    load = made(loaded, "useless-drafter", 2, 12)
    side = Side(loaded, build("autoregressive", runner_of(loaded)), load, Switch(), 3.0)
    for index in range(2):
        side.answer(index)
    assert [each.faulty for each in side.rounds] == ([False] * 5 + [True] * 6) * 2
    assert len(side.seconds) == 2 and not side.switch.on


def test_a_text_that_changed_is_found(loaded: Loaded) -> None:
    load, plain = made(loaded, "random-text"), build("autoregressive", runner_of(loaded))
    sides = [Side(loaded, plain, load, Switch(), 3.0) for _ in range(2)]
    for side in sides:
        side.answer(0)
    assert row_of(*sides).identical == 1
    output = sides[1].requests[0][0].output
    output[4] = (output[4] + 1) % 200
    row = row_of(*sides)
    assert row.wrong[0][0] == 0 and row.wrong[0][1].position == 4 and "1 texts differ" in row.failures


@pytest.mark.parametrize(
    ("fields", "fails"),
    [
        ({"speed": Ratio(0.9, 0.85, 0.979, 9)}, True),
        ({"speed": Ratio(0.9, 0.85, 0.98, 9)}, False),  # the interval reaches the floor
        ({"speed": Ratio(0.9, None, None, 1)}, False),  # one pair has no interval
        ({"worst": Stretch(0.979, 3, 51)}, True),
        ({"worst": Stretch(0.98, 3, 51)}, False),
        ({"disabled": ["too slow"]}, True),
        ({"near": [(0, Difference(1, (2, 3), 0.0))]}, False),
        ({"wrong": [(0, Difference(1, (2, 3), 9.0))]}, True),
        ({}, False),
    ],
)
def test_a_floor_is_missed_by_a_whole_interval_or_by_a_stretch(fields: dict[str, Any], fails: bool) -> None:
    assert bool(Row("x", **fields).failures) == fails


def test_a_recipe_with_texts_of_its_own_is_refused(loaded: Loaded) -> None:
    with pytest.raises(OptionError, match="random numbers of its own"):
        next(measure(loaded, "speculative_sampling:verifier=rejection", [made(loaded, "random-text")]))

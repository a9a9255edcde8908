"""Texts are followed while drafts are asked for; the others decode plainly, and nothing changes in what is written."""

from typing import Any

import pytest

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine import followed
from draftwood.drafters.combine.followed import Followed
from draftwood.testing.contracts import check_drafter
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import random_probs
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from ragged import TARGET, check_same_text

INNER = recipes.drafter("speculative_sampling:draft=first:3", TARGET)


class Sometimes:
    """Drafts in one of `every` rounds."""

    needs = Fixed(0).needs

    def __init__(self, every: int) -> None:
        self.every, self.turn = every, 0

    def init(self, slots: int) -> None:
        return None

    def plan(self, state: None, rnd: Any, load: Any) -> Limit:
        self.turn += 1
        depth = 0 if self.turn % self.every else 3
        return Limit.of([depth] * rnd.batch, [depth] * rnd.batch)

    def update(self, state: None, rnd: Any, outcome: Any) -> None:
        return None

    def free(self, state: None, slots: Any) -> None:
        return None


def recipe(every: int) -> Recipe:
    controller: Any = Sometimes(every)
    return Recipe(drafter=Followed(INNER), policy=Chain(Draw.GIVEN), verifier=Match(), controller=controller)


def test_the_contract_holds() -> None:
    class All(Followed):
        def init(self, slots: int) -> Any:
            state = Followed.init(self, slots)
            state.slots.update(range(slots))
            return state

        def free(self, state: Any, slots: Any) -> None:
            return None

    check_drafter(All(TableDrafter(random_probs(5, 3))), Chain(), 5)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_stays_when_some_are_followed_and_others_not(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "SHARE", 2.0)
    monkeypatch.setattr(followed, "FEW", 2)
    requests = check_same_text(recipe(1), temperature)
    drafted = [bool(r.stats.draft_tokens) for r in requests]
    assert any(drafted) and not all(drafted)


def test_while_nothing_is_asked_for_one_in_a_few_is_followed_and_soon_all_again() -> None:
    engine = make_engine(TARGET, recipe(10**9), slots=1, capacity=64)
    params, prompts = SamplingParams(max_tokens=40), [[1], [2], [3], [4], [5], [6]]
    serve(engine, prompts * 2, params)
    state = engine.drafter_state
    assert state.share < followed.SHARE
    seen: list[int] = []
    for _ in range(12):
        before = set(state.slots)
        engine.recipe.drafter.admit(state, 0, serve_request())
        seen += [1 if 0 in state.slots else 0]
        state.slots.clear()
        state.slots.update(before)
    assert sum(seen) == 2
    state.share = 0.5
    engine.recipe.drafter.admit(state, 0, serve_request())
    assert 0 in state.slots


def test_drafts_that_are_not_expected_to_pay_are_followed_in_one_request_of_a_few() -> None:
    drafter = Followed(INNER, at_first=False)
    state, seen = drafter.init(1), 0
    for _ in range(12):
        drafter.admit(state, 0, serve_request())
        seen += 0 in state.slots
    assert seen == 2


def serve_request() -> Any:
    from draftwood.core.request import Request

    return Request(0, [1, 2], SamplingParams(), TARGET.info.vocab_size)

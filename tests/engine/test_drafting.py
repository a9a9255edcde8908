"""A controller or drafter that fails costs drafts, and never the engine."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.limit import Limit, Load
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.engine import engine as engines
from draftwood.engine import step as steps
from draftwood.testing.runs import make_engine, serve
from noisy_drafts import MODEL, V, drafted, options, plain, prompts, rounds

PARTS = ("plan", "update", "free")
GUARDS = {"plan": (steps, "plan_limit"), "update": (steps, "update_controller"), "free": (engines, "free_controller")}


class Faulty:
    """A controller that raises in one method while `when` says so of the sequences it is asked about."""

    needs = Needs()

    def __init__(self, where: str, when: Callable[[list[int]], bool], error: BaseException | None = None) -> None:
        self.where, self.when, self.error = where, when, error or RuntimeError("no idea")
        self.inner, self.raised = Fixed(4, 8), 0

    def trip(self, where: str, ids: list[int]) -> None:
        if where == self.where and self.when(ids):
            self.raised += 1
            raise self.error

    def init(self, slots: int) -> None:
        return None

    def plan(self, state: None, rnd: Round, load: Load) -> Limit:
        self.trip("plan", rnd.ids)
        return self.inner.plan(None, rnd, load)

    def update(self, state: None, rnd: Round, outcome: Outcome) -> None:
        self.trip("update", rnd.ids)

    def free(self, state: None, slots: Sequence[int]) -> None:
        self.trip("free", list(slots))


@pytest.mark.parametrize("where", ["plan", "update"])
def test_rounds_of_one_request_that_a_controller_fails_on_cost_drafts_and_nothing_else(where: str) -> None:
    """Requests 0 and 1 run first, 2 and 3 after them; the controller fails whenever 0 is there."""
    controller = Faulty(where, lambda ids: 0 in ids)
    engine = drafted(4, controller)
    got = serve(engine, prompts(4), options(4), arrive={2: 40, 3: 40})
    assert [r.output for r in got] == plain(4)
    assert controller.raised > 1 and not engine.closed
    for request in got[:2]:
        assert request.stats.disabled == f"{where}: RuntimeError: no idea"
    for request in got[2:]:
        assert request.stats.disabled is None and request.stats.draft_tokens > 0, "others are drafted as ever"
    assert rounds(got[2:])[0] + rounds(got[2:])[1] > 0, "accepted in the rounds of the others"
    if where == "plan":
        assert got[0].stats.draft_tokens == 0
    engine.runner.check_integrity()


def test_slot_that_a_controller_fails_to_free_is_not_drafted_until_it_is_freed() -> None:
    """One slot: the first request ends in a failure, the second pays for it, the third is drafted again."""
    controller = Faulty("free", lambda slots: bool(slots) and controller.raised == 0)
    engine = drafted(3, controller, slots=1)
    got = serve(engine, prompts(3), options(3))
    assert [r.output for r in got] == plain(3)
    assert [r.stats.disabled for r in got] == [None, "controller's free: RuntimeError: no idea", None]
    assert [r.stats.draft_tokens > 0 for r in got] == [True, False, True] and not engine.disabled
    assert min(rounds(got)) > 0, rounds(got)


class Unfreed:
    """A drafter whose `free` fails so many times, and which notes when it is admitted to a slot that it still holds."""

    def __init__(self, inner: Any, times: int, broken: bool = False) -> None:
        self.inner, self.times, self.broken = inner, times, broken
        self.held, self.twice = set[int](), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def admit(self, state: Any, slot: int, request: Any) -> int:
        self.twice += slot in self.held
        self.held.add(slot)
        return self.inner.admit(state, slot, request)

    def commit(self, state: Any, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        if self.broken:
            raise RuntimeError("no idea")
        self.inner.commit(state, rnd, outcome, output)

    def free(self, state: Any, slots: Sequence[int]) -> None:
        if self.times > 0:
            self.times -= 1
            raise RuntimeError("not now")
        self.held.difference_update(slots)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("times", "undrafted"), [(1, []), (2, [1]), (3, [1, 2]), (99, [1, 2, 3])])
def test_slot_that_a_drafter_fails_to_free_is_drafted_again_once_it_is_freed(times: int, undrafted: list[int]) -> None:
    """One slot and four requests: the drafter is asked again before each, and never admitted to a slot that it holds."""
    engine = drafted(4, Fixed(4, 8), slots=1)
    drafter: Any = Unfreed(engine.recipe.drafter, times)
    engine = make_engine(MODEL, replace(engine.recipe, drafter=drafter), slots=1)
    got = serve(engine, prompts(4), options(4))
    assert [r.output for r in got] == plain(4) and not drafter.twice
    assert [i for i, r in enumerate(got) if r.stats.disabled == "free: not now"] == undrafted
    assert [i for i, r in enumerate(got) if r.stats.draft_tokens == 0] == undrafted


def test_drafter_that_was_disabled_and_not_freed_is_asked_again_too() -> None:
    engine = drafted(2, Fixed(4, 8), slots=1)
    drafter: Any = Unfreed(engine.recipe.drafter, 1, broken=True)
    engine = make_engine(MODEL, replace(engine.recipe, drafter=drafter), slots=1)
    got = serve(engine, prompts(2), options(2))
    assert [r.output for r in got] == plain(2) and not drafter.twice
    assert [r.stats.disabled for r in got] == ["commit: no idea"] * 2, "the second one was drafted once, too"


@pytest.mark.parametrize("where", PARTS)
def test_without_the_guard_the_engine_would_close(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name = GUARDS[where]
    bare: dict[str, Any] = {
        "plan": lambda e, rnd, load: e.recipe.controller.plan(e.controller_state, rnd, load),
        "update": lambda e, rnd, outcome: e.recipe.controller.update(e.controller_state, rnd, outcome),
        "free": lambda e, slots: e.recipe.controller.free(e.controller_state, slots),
    }
    monkeypatch.setattr(module, name, bare[where])
    engine = drafted(2, Faulty(where, lambda ids: len(ids) > 0))
    with pytest.raises(RuntimeError, match="no idea"):
        serve(engine, prompts(2), options(2))
    assert engine.closed


@pytest.mark.parametrize("where", PARTS)
def test_interrupts_are_no_faults(where: str) -> None:
    engine = drafted(2, Faulty(where, lambda ids: len(ids) > 0, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        serve(engine, prompts(2), options(2))
    assert engine.closed


# --- what a drafter is told after it was disabled for one of two requests


class InvalidForOne:
    """Drafts of request 0 have tokens outside the vocabulary. The root of each sequence is read from every output."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.batches = inner, set[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def propose(self, state: Any, rnd: Round, *given: Any) -> Proposal:
        found = self.inner.propose(state, rnd, *given)
        wrong = torch.tensor([[i == 0] for i in rnd.ids]) & (found.tree.parents >= 0)
        return replace(found, tree=replace(found.tree, tokens=found.tree.tokens.masked_fill(wrong, V)))

    def commit(self, state: Any, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        self.batches.add(rnd.batch)
        assert output.tokens is not None and output.host_index is not None and output.token_index is not None
        assert output.host_index == output.token_index.tolist() and outcome.emitted == outcome.tokens.tolist()
        roots = [int(output.tokens.ids[own[0]]) for own in output.host_index]
        assert roots == [r.root for r in rnd.requests] == outcome.proposal.tree.tokens[:, 0].tolist()
        assert [len(path) for path in outcome.verdict.to_host().paths] == (1 + outcome.verdict.count).tolist()
        self.inner.commit(state, rnd, outcome, output)


def test_lists_and_tensors_of_an_outcome_belong_to_the_sequences_that_are_still_drafted() -> None:
    engine = drafted(2, Fixed(4, 8))
    drafter: Any = InvalidForOne(engine.recipe.drafter)
    engine = make_engine(engine.runner, replace(engine.recipe, drafter=drafter))
    got = serve(engine, prompts(2), options(2))
    assert [r.output for r in got] == plain(2) and drafter.batches == {1}
    assert [r.stats.disabled for r in got] == ["a token id is out of range", None]

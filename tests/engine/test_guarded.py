"""A controller or a watcher that raises costs drafts, or itself, and never the engine."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit, Load
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Outcome
from draftwood.drafters.nothing import Nothing
from draftwood.engine import engine as engines
from draftwood.engine import step as steps
from draftwood.engine.engine import Engine
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.oracle_drafter import NoisyOracle
from draftwood.testing.runs import make_engine, serve
from draftwood.testing.tiny import tiny_runner
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

V = 61
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


@pytest.fixture(scope="module")
def model() -> CpuRunner:
    return tiny_runner(1)


def prompts(count: int) -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(V) for _ in range(rng.randrange(4, 12))] for _ in range(count)]


def options(count: int) -> list[SamplingParams]:
    return [SamplingParams(temperature=1.0, seed=i, max_tokens=16) for i in range(count)]


def plain(model: CpuRunner, count: int) -> list[list[int]]:
    recipe = Recipe(drafter=Nothing(), policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(0))
    return [r.output for r in serve(make_engine(model, recipe), prompts(count), options(count))]


def drafted(model: CpuRunner, count: int, controller: Any, watch: tuple[Any, ...] = (), slots: int = 2) -> Engine:
    answers = {tuple(p): a for p, a in zip(prompts(count), plain(model, count), strict=True)}
    oracle = NoisyOracle(answers, V, 0.7)
    recipe = Recipe(drafter=oracle, policy=Chain(Draw.GIVEN), verifier=Match(), controller=controller, watch=watch)
    return make_engine(model, recipe, slots=slots)


def rounds(requests: list[Request]) -> tuple[int, ...]:
    return tuple(sum(getattr(r.stats, f"rounds_{k}") for r in requests) for k in ("all", "some", "none"))


@pytest.mark.parametrize("where", ["plan", "update"])
def test_rounds_of_one_request_that_a_controller_fails_on_cost_drafts_and_nothing_else(
    model: CpuRunner, where: str
) -> None:
    """Requests 0 and 1 run first, 2 and 3 after them; the controller fails whenever 0 is there."""
    controller = Faulty(where, lambda ids: 0 in ids)
    engine = drafted(model, 4, controller)
    got = serve(engine, prompts(4), options(4), arrive={2: 40, 3: 40})
    assert [r.output for r in got] == plain(model, 4)
    assert controller.raised > 1 and not engine.closed
    for request in got[:2]:
        assert request.stats.disabled == f"{where}: RuntimeError: no idea"
    for request in got[2:]:
        assert request.stats.disabled is None and request.stats.draft_tokens > 0, "others are drafted as ever"
    assert rounds(got[2:])[0] + rounds(got[2:])[1] > 0, "accepted in the rounds of the others"
    if where == "plan":
        assert got[0].stats.draft_tokens == 0
    engine.runner.check_integrity()


def test_slot_that_a_controller_fails_to_free_is_not_drafted_until_it_is_freed(model: CpuRunner) -> None:
    """One slot: the first request ends in a failure, the second pays for it, the third is drafted again."""
    controller = Faulty("free", lambda slots: bool(slots) and controller.raised == 0)
    engine = drafted(model, 3, controller, slots=1)
    got = serve(engine, prompts(3), options(3))
    assert [r.output for r in got] == plain(model, 3)
    assert [r.stats.disabled for r in got] == [None, "controller's free: RuntimeError: no idea", None]
    assert [r.stats.draft_tokens > 0 for r in got] == [True, False, True] and not engine.disabled
    assert min(rounds(got)) > 0, rounds(got)


@pytest.mark.parametrize("where", PARTS)
def test_without_the_guard_the_engine_would_close(
    model: CpuRunner, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name = GUARDS[where]
    bare: dict[str, Any] = {
        "plan": lambda e, rnd, load: e.recipe.controller.plan(e.controller_state, rnd, load),
        "update": lambda e, rnd, outcome: e.recipe.controller.update(e.controller_state, rnd, outcome),
        "free": lambda e, slots: e.recipe.controller.free(e.controller_state, slots),
    }
    monkeypatch.setattr(module, name, bare[where])
    engine = drafted(model, 2, Faulty(where, lambda ids: len(ids) > 0))
    with pytest.raises(RuntimeError, match="no idea"):
        serve(engine, prompts(2), options(2))
    assert engine.closed


@pytest.mark.parametrize("where", PARTS)
def test_interrupts_are_no_faults(model: CpuRunner, where: str) -> None:
    engine = drafted(model, 2, Faulty(where, lambda ids: len(ids) > 0, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        serve(engine, prompts(2), options(2))
    assert engine.closed


# --- watchers


def test_watcher_that_raises_once_is_left_out_and_the_others_are_still_asked(model: CpuRunner) -> None:
    calls = {"bad": 0, "good": 0}

    def bad(*given: Any) -> None:
        calls["bad"] += 1
        if calls["bad"] == 3:
            raise ValueError("seen enough")

    def good(*given: Any) -> None:
        calls["good"] += 1

    engine = drafted(model, 4, Fixed(4, 8), watch=(bad, good))
    got = serve(engine, prompts(4), options(4))
    assert [r.output for r in got] == plain(model, 4)
    assert all(r.stats.disabled is None and r.stats.draft_tokens > 0 for r in got), "its failure costs nobody a draft"
    assert calls["bad"] == 3 < calls["good"] == engine.rounds and not engine.closed
    assert min(rounds(got)) > 0, rounds(got)


def test_without_the_guard_a_watcher_would_close_the_engine(model: CpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(*given: Any) -> None:
        raise ValueError("seen enough")

    def unguarded(e: Engine, *given: Any) -> None:
        for watcher in e.recipe.watch:
            watcher(*given)

    monkeypatch.setattr(steps, "show_watchers", unguarded)
    engine = drafted(model, 2, Fixed(4, 8), watch=(bad,))
    with pytest.raises(ValueError, match="seen enough"):
        serve(engine, prompts(2), options(2))
    assert engine.closed


def test_interrupt_inside_a_watcher_passes(model: CpuRunner) -> None:
    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(drafted(model, 2, Fixed(4, 8), watch=(interrupted,)), prompts(2), options(2))


def test_tensors_of_a_round_can_be_learnt_from(model: CpuRunner) -> None:
    """Weights times what the watcher was shown, back through autograd: features, logits, drafted tokens, roots."""
    slopes: list[float] = []

    def learn(rnd: Round, outcome: Outcome, output: Any) -> None:
        weight = torch.ones(output.logits.shape[1], dtype=torch.float64, requires_grad=True)
        table = torch.ones(V, 2, requires_grad=True)
        assert rnd.lengths.shape == rnd.slots.shape and output.tokens is not None
        read = torch.nn.functional.embedding(output.tokens.ids, table).sum()
        drafts = torch.nn.functional.embedding(outcome.proposal.tree.tokens, table).sum()
        loss = (output.logits * weight).sum() + (output.hidden * weight[0]).sum() + read + drafts
        (loss + (weight[rnd.slots] * rnd.lengths).sum()).backward()
        slopes.append(float(weight.grad.abs().sum()))  # type: ignore[union-attr]

    engine = drafted(model, 2, Fixed(4, 8), watch=(learn,))
    got = serve(engine, prompts(2), options(2))
    assert not engine.failed_watchers and len(slopes) == engine.rounds and min(slopes) > 0
    assert [r.output for r in got] == plain(model, 2)


def test_tensors_of_inference_could_not(model: CpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a round's own tensors, as they were made."""
    errors: list[str] = []

    def learn(rnd: Round, outcome: Outcome, output: Any) -> None:
        weight = torch.ones(output.logits.shape[1], dtype=torch.float64, requires_grad=True)
        try:
            (output.logits * weight).sum().backward()
        except RuntimeError as error:
            errors.append(str(error))

    def as_made(e: Engine, *given: Any) -> None:
        with torch.inference_mode(False), torch.enable_grad():
            for watcher in e.recipe.watch:
                watcher(*given)

    monkeypatch.setattr(steps, "show_watchers", as_made)
    serve(drafted(model, 2, Fixed(4, 8), watch=(learn,)), prompts(2), options(2))
    assert errors and "Inference tensors cannot be saved for backward" in errors[0]


def test_what_a_watcher_does_to_its_copies_changes_no_text(model: CpuRunner) -> None:
    def scribble(rnd: Round, outcome: Outcome, output: Any) -> None:
        for x in (output.logits, output.hidden, outcome.tokens, outcome.verdict.path, outcome.proposal.tree.tokens):
            x.zero_()
        rnd.slots.zero_()

    engine = drafted(model, 3, Fixed(4, 8), watch=(scribble,))
    got = serve(engine, prompts(3), options(3))
    assert [r.output for r in got] == plain(model, 3) and not engine.failed_watchers
    assert min(rounds(got)) > 0, rounds(got)

"""Interrupts and failures end requests, never the engine's usefulness; many requests wait their turn."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.engine.engine import Engine
from draftwood.engine.interrupt import HeldInterrupt
from draftwood.engine.shared_engine import Running, SharedEngine
from draftwood.errors import EngineError
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

V = 61
WHERE = ("plan", "verify", "select", "watch")
Act = Callable[[], None]


@pytest.fixture(scope="module")
def model() -> CpuRunner:
    return tiny_runner(1)


class Trap:
    """Acts once, in the given part of the fourth round after it was armed."""

    def __init__(self, where: str, act: Act) -> None:
        self.where, self.act, self.left = where, act, 4

    def spring(self, where: str) -> None:
        if where == self.where and self.left:
            self.left -= 1
            if not self.left:
                self.act()


class Trapped:
    """A part that springs a trap and then does what it always does."""

    def __init__(self, part: Any, method: str, trap: Trap) -> None:
        self.part, self.method, self.trap = part, method, trap

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.part, name)
        if name != self.method:
            return found

        def call(*given: Any) -> Any:
            self.trap.spring(self.method)
            return found(*given)

        return call


def shared(model: CpuRunner, trap: Trap | None = None, slots: int = 2) -> SharedEngine:
    recipe = Recipe(drafter=NGram(n_min=1), policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(3))
    if trap is not None:
        recipe = replace(
            recipe,
            policy=Trapped(recipe.policy, "select", trap),
            verifier=Trapped(recipe.verifier, "verify", trap),
            controller=Trapped(recipe.controller, "plan", trap),
            watch=(lambda *_: trap.spring("watch"),),
        )
    return SharedEngine(lambda: make_engine(model, recipe, slots=slots))


def running(count: int, tokens: int = 12) -> list[Running]:
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=tokens) for i in range(count)]
    return [Running(Request(i, [1 + i % 9, 2, 3, 1, 2], p, V), None) for i, p in enumerate(params)]


def outputs(engine: SharedEngine, several: list[Running]) -> list[list[int]]:
    engine.run(several, lambda done: None)
    return [each.request.output for each in several]


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("where", WHERE)
def test_interrupt_anywhere_in_a_round_cancels_and_the_engine_goes_on(model: CpuRunner, where: str) -> None:
    wanted = outputs(shared(model), running(4))
    engine, stopped = shared(model, Trap(where, interrupt)), running(4, tokens=40)
    made = engine.engine
    with pytest.raises(KeyboardInterrupt):
        engine.run(stopped, lambda done: None)
    assert {each.request.finish_reason for each in stopped} == {"cancelled"}
    assert not engine.engine.has_work and engine.engine is made, "the round was whole"
    engine.engine.runner.check_integrity()
    assert outputs(engine, running(4)) == wanted


@pytest.mark.parametrize("where", WHERE)
def test_interrupt_of_one_round_of_a_stream_cancels_it(model: CpuRunner, where: str) -> None:
    wanted = outputs(shared(model), running(2))
    engine = shared(model, Trap(where, interrupt))
    (only,) = running(1, tokens=40)
    with pytest.raises(KeyboardInterrupt):
        for _ in engine.rounds(only):
            pass
    assert only.request.finish_reason == "cancelled" and not engine.engine.has_work
    assert outputs(engine, running(2)) == wanted


def test_without_holding_the_round_would_be_cut_off(model: CpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: an interrupt that is not held costs the engine, cache included."""
    for method in ("__enter__", "__exit__"):
        monkeypatch.setattr(HeldInterrupt, method, lambda self, *_: self if not _ else None)
    engine = shared(model, Trap("verify", interrupt))
    made = engine.engine
    with pytest.raises(KeyboardInterrupt):
        engine.run(running(4, tokens=40), lambda done: None)
    assert made.closed and engine.engine is not made


def test_round_cut_off_by_a_second_interrupt_leaves_a_fresh_engine(model: CpuRunner) -> None:
    def twice() -> None:
        interrupt()
        interrupt()

    wanted = outputs(shared(model), running(3))
    engine, stopped = shared(model, Trap("verify", twice)), running(3, tokens=40)
    made = engine.engine
    with pytest.raises(KeyboardInterrupt):
        engine.run(stopped, lambda done: None)
    assert made.closed and engine.engine is not made
    assert {each.request.finish_reason for each in stopped[:2]} == {"cancelled"}
    assert outputs(engine, running(3)) == wanted


def test_failed_round_is_raised_to_its_caller_told_to_the_others_and_over(model: CpuRunner) -> None:
    def fail(*given: Any, **more: Any) -> None:
        raise MemoryError("no room")

    wanted = outputs(shared(model), running(2))
    engine = shared(model, slots=4)
    mine, other = running(2, tokens=40)
    stream = engine.rounds(other)
    next(stream)
    engine.engine.runner.execute = fail  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        engine.run([mine], lambda done: None)
    assert next(stream) is None and list(stream) == []
    assert other.request.finish_reason == "error" and "MemoryError: no room" in str(other.request.error)
    assert outputs(engine, running(2)) == wanted


def test_more_requests_than_may_wait_are_queued(model: CpuRunner) -> None:
    engine, several, finished = shared(model, slots=3), running(40, tokens=2), []
    longest = 0

    def advance(done: int) -> None:
        nonlocal longest
        finished.append(done)
        longest = max(longest, engine.engine.scheduler.waiting)

    engine.run(several, advance)
    assert all(len(each.request.output) == 2 for each in several) and sum(finished) == 40
    assert 0 < longest <= 3, "others find a short queue"


def test_request_that_another_thread_finished_still_yields_its_end(model: CpuRunner) -> None:
    engine = shared(model)
    stream, other = running(2, tokens=3)
    rounds = engine.rounds(stream)
    next(rounds)
    engine.run([other], lambda done: None)
    while not stream.request.finished:
        engine.engine.step()
    assert len(list(rounds)) == 1


def test_closing_while_a_request_runs_is_said(model: CpuRunner) -> None:
    engine = shared(model)
    rounds = engine.rounds(running(1, tokens=40)[0])
    next(rounds)
    engine.close()
    assert len(list(rounds)) == 1
    with pytest.raises(EngineError, match="closed"):
        engine.run(running(1), lambda done: None)


def test_threads_run_rounds_for_each_other(model: CpuRunner) -> None:
    wanted = outputs(shared(model), running(6))
    engine, several = shared(model), running(6)
    threads = [threading.Thread(target=engine.run, args=([each], lambda done: None)) for each in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.request.output for each in several] == wanted


@pytest.mark.parametrize("held", [True, False])
def test_interrupt_while_a_stream_is_closed_leaves_nothing_behind(
    model: CpuRunner, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin does not hold it: the request stays in the engine."""
    if not held:
        for method in ("__enter__", "__exit__"):
            monkeypatch.setattr(HeldInterrupt, method, lambda self, *_: self if not _ else None)
    engine = shared(model)
    wanted, made = outputs(shared(model), running(2)), engine.engine
    real, left = made.release, [interrupt]

    def release(slots: Any) -> None:
        if left and slots:
            left.pop()()
        real(slots)

    monkeypatch.setattr(made, "release", release)
    rounds = engine.rounds(running(1, tokens=40)[0])
    next(rounds)
    with pytest.raises(KeyboardInterrupt):
        rounds.close()
    assert made.has_work != held
    if held:
        assert outputs(engine, running(2)) == wanted and engine.engine is made


def test_third_interrupt_that_hits_the_replacement_of_the_engine_does_no_harm(model: CpuRunner) -> None:
    def twice() -> None:
        interrupt()
        interrupt()

    wanted = outputs(shared(model), running(2))
    engine, left = shared(model, Trap("verify", twice)), [interrupt]
    make = engine.make

    def interrupted() -> Engine:
        if left:
            left.pop()()
        return make()

    engine.make = interrupted
    with pytest.raises(KeyboardInterrupt):
        engine.run(running(2, tokens=40), lambda done: None)
    with pytest.raises(KeyboardInterrupt):
        engine.run(running(2), lambda done: None)
    assert outputs(engine, running(2)) == wanted


def test_interrupt_in_a_round_that_fails_is_delivered() -> None:
    with pytest.raises(KeyboardInterrupt), HeldInterrupt():
        interrupt()
        raise ValueError("the round failed as well")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_child_of_a_fork_during_a_round_is_refused_and_does_not_wait(model: CpuRunner) -> None:
    def forked() -> int:
        child = os.fork()
        if not child:
            try:
                outputs(engine, running(1))
                os._exit(0)
            except EngineError as error:
                os._exit(3 if "forked during a round" in str(error) else 4)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    engine = shared(model)
    assert forked() == 0, "between rounds a child may go on"
    with engine._lock:  # pyright: ignore[reportPrivateUsage]
        assert forked() == 3
    assert outputs(engine, running(1)) == outputs(shared(model), running(1))

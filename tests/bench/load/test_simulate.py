"""The simulator serves every request once, in the seconds of its machine, with the engine's own schedulers."""

from functools import partial
from typing import Any

import pytest

from draftwood.bench.load.arrivals import Answer, Arrival, arrivals, machines, recorded, traces
from draftwood.bench.load.compare import FIRST, compare, schedulers
from draftwood.bench.load.simulate import Machine, Simulator, simulated
from draftwood.engine.scheduler import FirstCome
from draftwood.engine.shortest_first import ShortestFirst

MACHINE = Machine(((1, 1.0), (100, 1.0)))
ANSWER = Answer(5, 10, (2, 0, 1))


def arrive(*seconds_and_tokens: tuple[float, int]) -> list[Arrival]:
    return [Arrival(second, ANSWER, tokens, 1000) for second, tokens in seconds_and_tokens]


def test_one_request_takes_its_rounds() -> None:
    (alone,) = Simulator(FirstCome(), MACHINE, 2).run(arrive((3.0, 4)))
    assert alone.ended == 7.0 and alone.latency == 4.0 and len(alone.request.output) == 4
    drafting = Machine(MACHINE.passes, depth=2, level=0.5)
    (drafted,) = Simulator(FirstCome(), drafting, 2).run(arrive((0.0, 4)))
    assert drafted.ended == 2 * (1.0 + 2 * 0.5), "three tokens, then one and nothing accepted of the next draft"


def test_a_queue_waits_for_a_slot() -> None:
    done = Simulator(FirstCome(), MACHINE, 1).run(arrive((0.0, 3), (0.0, 2), (0.5, 1)))
    assert [each.ended for each in done] == [3.0, 5.0, 6.0]


def test_shortest_first_serves_the_same_work_in_another_order() -> None:
    coming = arrive((0.0, 200), *((40.0 + i, 3) for i in range(5)))
    first, _ = simulated(FirstCome(), MACHINE, 1, coming)
    least, done = simulated(ShortestFirst(1), MACHINE, 6, coming)
    assert all(len(each.request.output) == each.arrival.tokens for each in done)
    assert least.mean < 0.5 * first.mean and least.busy == pytest.approx(first.busy, abs=0.02)
    assert least.preempted == 0 and least.length_error is not None and first.length_error is None


def test_work_of_all_requests_makes_the_load() -> None:
    trace, answers = traces()[0], recorded()
    machine = Machine(((1, 0.01), (512, 0.3)))
    work = partial(machine.work, 8)
    coming = arrivals(trace, answers, work, 2048, 0)
    assert len(coming) == trace.requests and coming == arrivals(trace, answers, work, 2048, 0)
    assert coming != arrivals(trace, answers, work, 2048, 1)
    load = sum(work(each.answer, each.tokens) for each in coming) / coming[-1].second
    assert load == pytest.approx(trace.load, rel=0.35)


def test_the_traces_are_the_fixed_ones() -> None:
    named = {each.name: each for each in traces()}
    assert (named["poisson"].load, named["bursts"].load, named["bursts"].burst) == (0.7, 0.9, 64)
    assert named["heavy tail"].tail > 1 and set(machines()) == {"two cores", "accelerator"}
    answers = recorded()
    assert len(answers) >= 20 and all(each.tokens > 0 and each.prompt > 0 for each in answers)


@pytest.mark.long
def test_bursts_are_served_sooner_and_nobody_starves() -> None:
    """Small: the table of the command has five seeds and all traces."""
    trace = next(each for each in traces() if each.name == "bursts")
    fields: dict[str, Any] = machines()["accelerator"]
    machine = Machine(**{**fields, "passes": tuple(map(tuple, fields["passes"]))})
    first, *others = compare("accelerator", machine, trace, recorded(), schedulers(8, 32, 0.3), 8, 2048, 1)
    assert first.scheduler == FIRST and first.ratio is None
    told = [row for row in others if "told" in row.scheduler]
    assert len(told) == 2 and all(row.ratio is not None and row.ratio < 0.9 for row in told)
    assert all(row.slowest < 3 * first.slowest for row in others)

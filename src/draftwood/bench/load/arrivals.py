"""Arrivals: when requests come and which they are, by a few numbers and a seed, so that a trace is the same everywhere.

`load` is the work of all requests over the time in which they come, where work is what a request takes of a full machine:
no knowledge of any scheduler. What a request is like (prompt, answer, accepted tokens of its rounds) is drawn from recorded
answers.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("recorded.json")
TRACES = Path(__file__).with_name("traces.json")


@dataclass(frozen=True, slots=True)
class Answer:
    """One recorded answer: tokens of its prompt and of itself, and of every round how many drafted tokens were accepted."""

    prompt: int
    tokens: int
    accepted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """`burst`: requests that come together, 1: each alone. `tail`: shape of a Pareto distribution by which answers are
    stretched, 0: as recorded."""

    name: str
    load: float
    requests: int
    burst: int = 1
    tail: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """`cap`: tokens the request allows, as a user would set it."""

    second: float
    answer: Answer
    tokens: int
    cap: int


def recorded(file: Path = RECORDED) -> list[Answer]:
    return [Answer(prompt, tokens, tuple(accepted)) for prompt, tokens, accepted in _read(file)["answers"]]


def traces(file: Path = TRACES) -> list[Trace]:
    return [Trace(**each) for each in _read(file)["traces"]]


def machines(file: Path = TRACES) -> dict[str, Any]:
    """Fields of each machine, by name."""
    return _read(file)["machines"]


def _read(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))


def arrivals(
    trace: Trace, answers: list[Answer], work: Callable[[Answer, int], float], most: int, seed: int
) -> list[Arrival]:
    """In order of time. `work`: seconds that an answer of so many tokens takes of a full machine; `most`: tokens that a
    request allows."""
    rng = random.Random(f"{trace.name} {seed}")
    chosen: list[tuple[Answer, int]] = []
    for _ in range(trace.requests):
        answer = rng.choice(answers)
        stretch = rng.paretovariate(trace.tail) if trace.tail else 1.0
        chosen.append((answer, min(max(1, round(answer.tokens * stretch)), most)))
    mean = sum(work(answer, tokens) for answer, tokens in chosen) / len(chosen)
    gap = mean * trace.burst / trace.load  # between bursts
    found: list[Arrival] = []
    second = 0.0
    for i, (answer, tokens) in enumerate(chosen):
        if i % trace.burst == 0:
            second += rng.expovariate(1 / gap)
        found.append(Arrival(second, answer, tokens, most))
    return found

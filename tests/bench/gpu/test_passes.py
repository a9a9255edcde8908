"""Passes are timed over the context that they name, by both paths, and leave it as it was."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.bench.gpu import passes
from draftwood.bench.gpu.passes import IN_A_ROW, Case, Timed, fill, measure, random_decoder, tree_pass
from draftwood.kernels.gpu.twins import Twins
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder

LONG = replace(CONFIG, max_positions=1024)


def counting(seconds: float) -> tuple[Callable[[Callable[[], Any]], float], list[int]]:
    """A clock that runs what it is given and reports the same time."""
    calls: list[int] = []

    def clock(run: Callable[[], Any]) -> float:
        run()
        calls.append(1)
        return seconds

    return clock, calls


def test_every_case_is_timed_by_the_paths_that_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = counting(0.02)
    cases = [Case(1, 30, 1), Case(3, 20, 5)]
    found = measure(tiny_decoder(), cases, 1e9, clock, repeats=2)
    assert [row.case for row in found] == cases and len(calls) == 2 * (passes.WARM_UP + 2)
    assert all(row.ms == {"kernels": None, "stock": pytest.approx(20.0 / IN_A_ROW)} for row in found)
    assert found[1].floor > found[0].floor
    monkeypatch.setattr(CudaRunner, "operations", lambda self: Twins())
    opened = CudaRunner.open
    monkeypatch.setattr(CudaRunner, "open", lambda self, *a: opened(CudaRunner(self.model, operations=Twins()), *a))
    (both,) = measure(tiny_decoder(), cases[:1], 1e9, clock, repeats=1)
    assert both.ms["kernels"] is not None and both.ms["stock"] is not None


def test_over_the_floor_is_that_of_the_faster_path() -> None:
    assert Timed(Case(1, 1, 1), {"kernels": 3.0, "stock": 4.0}, 2.0).over_floor == 1.5
    assert Timed(Case(1, 1, 1), {"kernels": None, "stock": 4.0}, 2.0).over_floor == 2.0
    assert Timed(Case(1, 1, 1), {}, 2.0).over_floor is None


def test_contexts_are_full_and_no_two_alike() -> None:
    case = Case(3, 600, 4)
    runner = CudaRunner(tiny_decoder(config=LONG), operations=Twins()).open(3, 700)
    fill(runner, case)
    assert [runner.length(slot) for slot in range(3)] == [600] * 3
    texts = [runner.cache.text(slot) for slot in range(3)]
    assert texts[0] != texts[1] != texts[2]
    blocks = [block for slot in range(3) for block in runner.cache.blocks.of(slot)]  # type: ignore[attr-defined]
    assert len(set(blocks)) == len(blocks), "nothing is shared, so all of it is read from memory"
    x = tree_pass(runner, case)
    output = runner.execute(x)
    assert x.size == 12 and output.logits[output.logits_index].isfinite().all()
    assert x.positions.min() == 600 and x.positions.max() < 604


def test_a_random_decoder_computes_numbers() -> None:
    model = random_decoder(LONG, torch.device("cpu"), torch.float32)
    runner = CudaRunner(model).stock(1, 64)
    fill(runner, Case(1, 20, 1))
    output = runner.execute(tree_pass(runner, Case(1, 20, 1)))
    assert output.logits.isfinite().all() and output.logits.std() > 0

"""Whole runs of the engine where looking at a number would stop a device, on tensors of the processor: texts, and what every
round read."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from draftwood.core.batch import Batch, Room
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.engine.scheduler import FirstCome
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.runs import make_engine


@dataclass(frozen=True)
class Ran:
    """One run. `decoding`: of every round how many sequences decoded in it, and how many only ran a part of their prompt."""

    requests: list[Request]
    reads: list[HostReads]
    decoding: list[tuple[int, int]]

    @property
    def texts(self) -> list[list[int]]:
        return [r.output for r in self.requests]

    @property
    def accepted(self) -> tuple[int, int, int]:
        """Rounds of all requests that accepted all, some and none of their draft."""
        each = [(r.stats.rounds_all, r.stats.rounds_some, r.stats.rounds_none) for r in self.requests]
        every, some, none = (sum(column) for column in zip(*each, strict=True))
        return every, some, none

    @property
    def disabled(self) -> set[str | None]:
        return {r.stats.disabled for r in self.requests}

    def read_once(self) -> bool:
        """Whether every round in which a sequence decoded read exactly once, and the others nothing."""
        both = zip(self.reads, self.decoding, strict=True)
        return all(reads.total == (1 if ready else 0) for reads, (ready, _) in both)

    def by_round(self) -> str:
        return str([dict(reads.by_name) for reads in self.reads])


def ran(
    target: CpuRunner | CudaRunner,
    build: Callable[[Any], Recipe],
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams] | SamplingParams,
    *,
    arrive: Mapping[int, int] | None = None,
    cancel: Mapping[int, int] | None = None,
    slots: int | None = None,
    capacity: int = 64,
    chunk: int = 512,
    max_cache_tokens: int | None = None,
    counted: bool = True,
) -> Ran:
    """Run to the end: a CudaRunner as on a device, others as on a processor, where reads are not counted. `build`: the
    recipe for this target. `arrive[i]`, `cancel[i]`: the rounds in which a request comes and goes. `counted`: to count
    takes as long again as the round."""
    device = isinstance(target, CudaRunner)
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    both = zip(prompts, each, strict=True)
    requests = [Request(i, list(prompt), p, target.info.vocab_size) for i, (prompt, p) in enumerate(both)]
    arrive, cancel = dict(arrive or {}), dict(cancel or {})
    found = Ran(requests, [], [])
    with torch.inference_mode(), as_if_on_a_device() if device else nullcontext():
        room = {"capacity": capacity, "chunk": chunk, "max_cache_tokens": max_cache_tokens}
        engine = make_engine(target, build(target), slots=slots or len(prompts), **room)
        engine.scheduler = noted = _Noted()
        waiting, turn = list(requests), 0
        while waiting or engine.has_work:
            for request in [r for r in waiting if arrive.get(r.id, 0) <= turn]:
                waiting.remove(request)
                engine.add(request)
            for i, at in cancel.items():
                if at == turn:
                    engine.cancel(requests[i])
            with HostReads() if device and counted else nullcontext() as reads:
                engine.step()
            if reads is not None:
                found.reads.append(reads)
            found.decoding.append(noted.handed)
            turn += 1
        engine.runner.check_integrity()
    return found


class _Noted(FirstCome):
    """First come, first served. `handed`: of the last round the sequences that decode, and those that do not yet."""

    def __init__(self) -> None:
        super().__init__()
        self.handed = 0, 0

    def next(self, room: Room) -> Batch:
        batch = super().next(room)
        self.handed = len(batch.ready), len(batch.sequences) - len(batch.ready)
        return batch

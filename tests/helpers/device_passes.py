"""Passes over several slots, made of known tokens and random trees, for runners that must agree on them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from draftwood.core.forward import FINAL, ForwardInput, ForwardOutput, Span
from draftwood.kernels.gpu.twins import Twins
from draftwood.models.decoder import Decoder
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner

VOCAB = 61


@dataclass(frozen=True)
class Part:
    """The tokens of one slot: `known` of them are text, the others a tree below the last of those."""

    slot: int
    ids: list[int]
    parents: list[int]
    known: int

    @property
    def depths(self) -> list[int]:
        found: list[int] = []
        for parent in self.parents:
            found.append(0 if parent < 0 else found[parent] + 1)
        return found

    def path(self, node: int) -> list[int]:
        """From the first token down to this one."""
        found = [node]
        while self.parents[found[-1]] >= 0:
            found.append(self.parents[found[-1]])
        return found[::-1]


def text(slot: int, ids: Sequence[int]) -> Part:
    return Part(slot, list(ids), list(range(-1, len(ids) - 1)), len(ids))


def drawn(rng: random.Random, slot: int, known: int, nodes: int) -> Part:
    """Random tokens, and a tree of any shape."""
    parents = [*range(-1, known - 1), *(rng.randrange(known - 1, known + i) for i in range(nodes))]
    return Part(slot, [rng.randrange(VOCAB) for _ in parents], parents, known)


def as_pass(parts: Sequence[Part], done: Sequence[int], *, told: bool = True) -> ForwardInput:
    """`done`: committed entries of each part's slot. `told`: the pass says its spans, as where nobody knows its tokens."""
    ids, slots, positions, entries, parents = ([] for _ in range(5))
    spans: list[Span] = []
    for part, before in zip(parts, done, strict=True):
        spans.append(Span(part.slot, len(ids), len(ids) + len(part.ids), before, 0, part.known))
        ids += part.ids
        slots += [part.slot] * len(part.ids)
        positions += [before + depth for depth in part.depths]
        entries += range(len(part.ids))
        parents += part.parents
    columns = torch.tensor([ids, slots, positions, entries, parents]).unbind(0)
    return ForwardInput(*columns, want=torch.arange(len(ids)), spans=tuple(spans) if told else ())


def logits_of(output: ForwardOutput) -> torch.Tensor:
    return output.logits[output.logits_index]


@dataclass(frozen=True)
class Pair:
    """One model on both runners, with caches of their own."""

    cpu: CpuRunner
    device: CudaRunner

    @staticmethod
    def of(model: Decoder, slots: int, capacity: int, operations: Twins | None = None) -> "Pair":
        device = CudaRunner(model, operations=operations)
        return Pair(CpuRunner(model).open(slots, capacity), device.open(slots, capacity))

    def each(self) -> tuple[Any, Any]:
        return self.cpu, self.device

    def admit(self, slot: int, tokens: Sequence[int]) -> int:
        sizes = {runner.admit(slot, tokens) for runner in self.each()}
        assert len(sizes) == 1, "they share prefixes alike"
        return sizes.pop()

    def free(self, slots: Sequence[int]) -> None:
        for runner in self.each():
            runner.free(slots)

    def run(self, parts: Sequence[Part], taps: frozenset[int] = frozenset({1, FINAL}), **more: Any) -> ForwardOutput:
        """One pass on both, whose outputs must be equal; that of the device."""
        x = as_pass(parts, [self.cpu.length(part.slot) for part in parts], **more)
        return self.agree(x, taps)

    def agree(self, x: ForwardInput, taps: frozenset[int] = frozenset(), **more: Any) -> ForwardOutput:
        right, found = (runner.execute(x, taps=taps, **more) for runner in self.each())
        near(found.hidden, right.hidden)
        assert found.features.keys() == right.features.keys() == taps
        for tap in taps:
            near(found.features[tap], right.features[tap])
        if len(right.logits):
            near(logits_of(found)[x.want], logits_of(right)[x.want])
            assert found.best is not None
            best = found.best[found.logits_index][x.want]
            assert torch.equal(best, logits_of(right)[x.want].argmax(-1))
        return found

    def commit(self, parts: Sequence[Part], paths: Sequence[Sequence[int]]) -> None:
        tokens = [[part.ids[entry] for entry in path] for part, path in zip(parts, paths, strict=True)]
        for runner in self.each():
            runner.commit([part.slot for part in parts], [list(path) for path in paths], tokens)
        for part in parts:
            self.same_entries(part.slot)

    def same_entries(self, slot: int) -> None:
        """Committed entries of a slot, in all layers."""
        size = self.cpu.length(slot)
        assert self.device.length(slot) == size
        assert self.device.cache.text(slot) == self.cpu.cache.text(slot)
        for spec in self.cpu.model.cache_specs:
            ours, right = (runner.cache.store(spec.name)[slot, :, :size] for runner in self.each())
            near(ours, right)


def near(found: torch.Tensor, right: torch.Tensor) -> None:
    torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-9)

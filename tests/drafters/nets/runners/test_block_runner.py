"""A block net says the same on stock operations, in rectangles and over int8 kernels."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.core.forward import ForwardInput, HostInput
from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.files.store import Head, read, to_bytes
from draftwood.drafters.nets.runners.block_native import BlockInt8Runner
from draftwood.drafters.nets.runners.block_runner import BlockDeviceRunner, BlockRunner
from draftwood.errors import WeightsError
from draftwood.models.backends import int8_weights
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.models.decoder import Decoder
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder
from native_levels import BEST, EVERY_LEVEL, distance, kept_weights, opened

LLAMA = replace(CONFIG, num_heads=6, num_kv_heads=2, head_dim=48, hidden_size=96, intermediate_size=160)
BIASED = replace(LLAMA, qkv_bias=True, out_bias=True, mlp_bias=True, tie_embeddings=False)
CONFIGS = {"llama": LLAMA, "biases": BIASED}
AHEAD, ROWS = 3, 37
NEAR, FAR = 0.03, 0.1  # mean distance in standard deviations: rounding stays below, a wrong mask or norm is above
TRIM = torch.tensor([0, 1, 5, 9, 20])


@cache
def weights(config: str) -> dict[str, Tensor]:
    return kept_weights(CONFIGS[config])


def target(config: str = "llama", level: str = BEST) -> NativeDecoder:
    return NativeDecoder(CONFIGS[config], int8_weights.from_tensors(CONFIGS[config], weights(config)), opened(level))


@cache
def head(config: str = "llama", seed: int = 0) -> Head:
    """As its file gives it back: blocks of 8 bits."""
    found = random_head("block", CpuRunner(target(config)), rows=ROWS, seed=seed)
    small = {k: t * (2 / t.shape[1]) ** 0.5 * 3 if t.ndim == 2 else t for k, t in found.tensors.items()}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "head.safetensors"
        path.write_bytes(to_bytes(replace(found, tensors=small)))
        return read(path)


def reference(config: str = "llama") -> BlockRunner:
    whole = CpuRunner(Decoder.from_tensors(CONFIGS[config], weights(config), torch.float64))
    return BlockRunner(filled(head(config)).double(), whole, head(config).ids)


def features(runner: Any, count: int, seed: int = 3, width: int = LLAMA.hidden_size) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return runner.fuse([torch.randn(count, width, generator=noise) for _ in runner.taps])


def text_of(hidden: Tensor, slot: int, done: int) -> ForwardInput:
    at = list(range(len(hidden)))
    columns = HostInput([1] * len(at), [slot] * len(at), at, [i - 1 for i in at])
    return ForwardInput.of(columns, [done + i for i in at], [], torch.device("cpu"), hidden)


def block_of(runner: Any, hidden: dict[int, Tensor], done: dict[int, int], ahead: int = AHEAD) -> ForwardInput:
    """New text of each slot, then the block behind a root, of which the first `ahead` places are wanted."""
    columns, positions, want, parts = HostInput([], [], [], []), [], [], []
    for slot, new in hidden.items():
        count, size = len(new), runner.ahead + 1
        columns.ids.extend([2 + slot] * (count + size))
        columns.slots.extend([slot] * (count + size))
        columns.entries.extend(range(count + size))
        columns.parents.extend([*range(-1, count - 1), *[count - 1] * size])
        positions += range(done[slot], done[slot] + count + size)
        want += range(len(positions) - size + 1, len(positions) - size + 1 + ahead)
        parts += [new, runner.enter(torch.tensor([2 + slot]))[0]]
    return ForwardInput.of(columns, positions, want, torch.device("cpu"), torch.cat(parts))


def run(
    weights_of: Any, slots: tuple[int, ...] = (0, 1), ahead: int = AHEAD, only: Tensor | None = None
) -> list[Tensor]:
    """Logits of three rounds of some slots, each with more text; only its text stays."""
    runner, found = weights_of.open(3, 64), []
    done = {slot: 9 + slot for slot in slots}
    for slot in slots:
        runner.admit(slot, [])
        hidden = features(runner, done[slot], slot)
        runner.execute(text_of(hidden[:5], slot, 0))
        runner.commit([slot], [[*range(5)]], [[1] * 5])
        runner.execute(text_of(hidden[5:], slot, 5))
        runner.commit([slot], [[*range(done[slot] - 5)]], [[1] * (done[slot] - 5)])
    for turn in range(3):
        new = {slot: features(runner, 1 + (slot + turn) % 3, 10 * slot + turn) for slot in slots}
        _, logits = runner.execute(block_of(runner, new, done, ahead), only)
        found.append(logits.clone().view(len(slots), ahead, -1))
        for slot, hidden in new.items():
            runner.commit([slot], [[*range(len(hidden))]], [[1] * len(hidden)])
            done[slot] += len(hidden)
    return found


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("config", CONFIGS)
def test_over_int8_kernels_it_is_the_net_in_float(config: str, level: str) -> None:
    for said, right in zip(
        run(BlockInt8Runner(head(config), target(config, level))), run(reference(config)), strict=True
    ):
        assert said.shape[-1] == ROWS and distance(said, right) < NEAR


def test_control_another_net_is_far_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, right in zip(run(BlockInt8Runner(head(seed=1), target())), run(reference()), strict=True):
        assert distance(said, right) > FAR
    monkeypatch.setattr("draftwood.drafters.nets.runners.block_native.opened", lambda segment, size: segment)
    assert (
        max(distance(a, b) for a, b in zip(run(BlockInt8Runner(head(), target())), run(reference()), strict=True)) > FAR
    )


def test_a_block_has_the_same_bits_alone_and_beside_others() -> None:
    ours = BlockInt8Runner(head(), target())
    for slot in (0, 1):
        for alone, both in zip(run(ours, (slot,)), run(ours), strict=True):
            assert torch.equal(alone[0], both[slot])


@pytest.mark.parametrize("kind", ["float", "device", "int8"])
def test_fewer_places_and_fewer_rows_are_a_part_of_all(kind: str) -> None:
    runner = made(kind)
    whole = run(runner)
    for some, every in zip(run(runner, ahead=2), whole, strict=True):
        torch.testing.assert_close(some, every[:, :2])
    columns = torch.isin(runner.ids, TRIM).nonzero()[:, 0]
    asked = runner.ids[columns]
    for some, every in zip(run(runner, only=asked), whole, strict=True):
        torch.testing.assert_close(some, every[..., columns])


def made(kind: str) -> Any:
    if kind == "int8":
        return BlockInt8Runner(head(), target())
    small = CpuRunner(Decoder.from_tensors(LLAMA, weights("llama"), torch.float64))
    return {"float": BlockRunner, "device": BlockDeviceRunner}[kind](filled(head()).double(), small, head().ids)


def test_in_rectangles_it_is_the_same() -> None:
    for slots in ((0,), (0, 1), (0, 2), (1, 2)):
        for said, right in zip(run(made("device"), slots), run(made("float"), slots), strict=True):
            torch.testing.assert_close(said, right, rtol=1e-9, atol=1e-9)


def test_the_host_reads_nothing_of_a_pass_on_an_accelerator() -> None:
    target_runner = CpuRunner(tiny_decoder())
    runner = BlockDeviceRunner(filled(random_head("block", target_runner)).double(), target_runner, None).open(2, 64)
    runner.admit(0, [])
    hidden = features(runner, 3, width=CONFIG.hidden_size)
    with as_if_on_a_device(), HostReads() as reads:
        runner.execute(block_of(runner, {0: hidden}, {0: 0}))
    assert reads.total == 0, reads.by_name


@pytest.mark.parametrize("kind", ["float", "device", "int8"])
def test_the_best_chain_is_made_of_the_best_token_of_each_place(kind: str) -> None:
    runner = made(kind).open(2, 64)
    runner.admit(0, [])
    x = block_of(runner, {0: features(runner, 4)}, {0: 0})
    logits = runner.execute(x)[1].clone()
    runner.commit([0], [[]], [[]])
    tokens, prob = runner.best_chains(x, [0.7], 5, k=2)
    top = (logits.double() / 0.7).softmax(-1).topk(2, dim=-1)
    assert torch.equal(tokens[0, :AHEAD], runner.ids[top.indices])
    torch.testing.assert_close(prob[0, :AHEAD].double(), top.values, rtol=1e-4, atol=1e-6)
    assert not prob[0, AHEAD:].any()


@pytest.mark.parametrize("kind", ["float", "int8"])
def test_new_weights_are_used_from_the_next_pass_on(kind: str) -> None:
    runner, other = made(kind), head(seed=1)
    before = run(runner)
    with pytest.raises(WeightsError, match="has no"):
        runner.refresh({"nothing": torch.zeros(1)})
    runner.refresh(other.tensors)
    after = run(runner)
    fresh = BlockInt8Runner(replace(other, ids=head().ids), target()) if kind == "int8" else runner
    for a, b, c in zip(before, after, run(fresh), strict=True):
        assert torch.equal(b, c) and not torch.equal(a, b)
    runner.refresh(head().tensors)

"""Kernels that fail or compute something else on a device are found before a model runs on them."""

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.cache.device import DeviceCache
from draftwood.cache.paged import PagedCache
from draftwood.errors import EngineError, OptionError
from draftwood.kernels.gpu.arguments import Placement
from draftwood.kernels.gpu.twins import Twins
from draftwood.models.decoder import Decoder
from draftwood.runners import cuda, fused_check
from draftwood.runners.cuda import CudaRunner, disagreement
from draftwood.runners.fused_check import SWITCH, operations_for
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder

WIDE = replace(CONFIG, hidden_size=64, head_dim=16, num_layers=3)


def model() -> Decoder:
    return tiny_decoder(1, config=WIDE, dtype=torch.bfloat16)


def test_what_agrees_up_to_rounding_is_accepted() -> None:
    assert disagreement(model(), Twins()) == ""


class OneToken(Twins):
    """Each token attends to one committed entry too few."""

    def placement(self, *args: Any, **named: Any) -> Placement:
        at = super().placement(*args, **named)
        return replace(at, seen=(at.seen - 1).clamp_min(1))


class Siblings(Twins):
    """A node attends to its siblings."""

    def placement(self, *args: Any, **named: Any) -> Placement:
        at = super().placement(*args, **named)
        return replace(at, words=torch.where(at.words != 0, at.words | 3, 0))


class Unmoved(Twins):
    """A commit that leaves entries where they are."""

    def moved(self, *args: Any) -> None:
        pass


class WrongHead(Twins):
    def scored(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        logits, best = super().scored(x, weight)
        return logits, best.roll(1)


class NoNumbers(Twins):
    def normed(self, x: Tensor, gain: Tensor | None, eps: float) -> Tensor:
        return super().normed(x, gain, eps) * float("nan")


class Broken(Twins):
    def gated(self, *args: Any) -> Tensor:
        raise EngineError("no image for this device\nhint: none")


class Unsteady(Twins):
    """A sum that is right now and then."""

    def gate(self, both: Tensor) -> Tensor:
        return super().gate(both) * (1 + 1e-2 * torch.rand(()))


@pytest.mark.parametrize(
    ("operations", "said"),
    [
        (OneToken(), "hidden states of pass 0"),
        (Siblings(), "hidden states of pass 1"),
        (Unmoved(), "of pass 2"),
        (WrongHead(), "greatest logits"),
        (NoNumbers(), "wrong by nan"),
        (Unsteady(), "not the same every time"),
        (Broken(), "EngineError: no image for this device"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_planted_faults_are_found(operations: Twins, said: str) -> None:
    assert said in disagreement(model(), operations)


def test_a_model_that_kernels_cannot_run_falls_back_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="draftwood"):
        assert operations_for(tiny_decoder(1), invariant=False, check=lambda *_: "") is None
    assert "stock operations instead of our kernels on cpu: dtype float64" in caplog.text
    runner = CudaRunner(tiny_decoder(1)).open(1, 8)
    assert runner.operations() is None


def test_kernels_run_only_after_the_check(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("triton")
    from draftwood.kernels.gpu.operations import Operations

    monkeypatch.setattr(fused_check, "runs_on", lambda device: True)
    seen: list[Any] = []

    def check(model: Decoder, operations: Twins) -> str:
        seen.append(operations)
        return "" if len(seen) == 1 else "logits are wrong"

    found: Any = operations_for(model(), invariant=True, check=check)
    assert isinstance(found, Operations) and found.invariant and seen == [found]
    assert operations_for(model(), invariant=False, check=check) is None
    assert "logits are wrong" in caplog.text
    with pytest.raises(OptionError, match=r"batch_invariant.*logits are wrong"):
        operations_for(model(), invariant=True, check=check)


def test_a_switch_forces_stock_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_check, "runs_on", lambda device: True)
    monkeypatch.setenv(SWITCH, "stock")
    assert operations_for(model(), invariant=False, check=lambda *_: "never asked") is None
    monkeypatch.setenv(SWITCH, "fast")
    with pytest.raises(OptionError, match="'fast'"):
        operations_for(model(), invariant=False, check=lambda *_: "")


def test_a_runner_opens_what_passed_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, with a check that finds the fault by itself."""
    pytest.importorskip("triton")
    from draftwood.kernels.gpu import operations

    monkeypatch.setattr(fused_check, "runs_on", lambda device: True)
    monkeypatch.setattr(operations, "Operations", lambda invariant: WrongHead())
    wrong = model()
    opened = CudaRunner(wrong).open(1, 16)
    assert type(opened.cache) is DeviceCache
    monkeypatch.setattr(operations, "Operations", lambda invariant: Twins())
    assert type(CudaRunner(model()).open(1, 16).cache) is PagedCache, "and what is right is taken"
    monkeypatch.setattr(cuda, "disagreement", lambda *_: pytest.fail("a model is checked once"))
    assert type(CudaRunner(wrong).open(1, 16).cache) is DeviceCache


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("invariant", [False, True])
def test_the_kernels_pass_the_check(invariant: bool) -> None:
    pytest.importorskip("triton")
    from draftwood.kernels.gpu.operations import Operations
    from gpu_cases import DEVICE, DTYPE

    found: Any = Operations(invariant)
    whole: Any = tiny_decoder(1, config=WIDE, dtype=DTYPE).to(DEVICE)
    assert disagreement(whole, found) == ""

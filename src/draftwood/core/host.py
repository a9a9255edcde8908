"""The one door between a device and Python numbers. The way to the host may wait for the device, so it is taken rarely;
the way to the device never waits."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.errors import EngineError


def on_host(device: torch.device | str) -> bool:
    """Whether looking at single numbers costs nothing: an accelerator would have to stop for it."""
    return torch.device(device).type == "cpu"


def host(x: Tensor) -> Any:
    """A tensor as (nested) lists of Python numbers. From an accelerator by way of pinned memory and an event: the host waits
    for this tensor, not for whatever was enqueued behind it."""
    if x.is_cuda:
        x = _landed(x)
    return x.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _landed(x: Tensor) -> Tensor:
    there = torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    done.synchronize()
    return there


_sealed = False


@contextmanager
def sealed() -> Generator[None]:
    """Inside, nothing may be put on a device: what runs here will be replayed without the host's numbers."""
    global _sealed
    before, _sealed = _sealed, True
    try:
        yield
    finally:
        _sealed = before


_NUMPY = {torch.int64: np.int64, torch.float32: np.float32, torch.float64: np.float64, torch.bool: np.bool_}


def put(x: Sequence[Any], device: torch.device | str, dtype: torch.dtype = torch.int64) -> Tensor:
    """Python numbers as a tensor of the device. Made here and copied from here, in the order of the device's work: asked
    for on the device itself, it would first wait until that is idle."""
    if _sealed:
        raise EngineError("numbers of the host are copied inside a function that is replayed without it")
    # By way of numpy: a few numbers are there in a third of the time that torch.tensor takes.
    made = torch.from_numpy(np.array(x, dtype=_NUMPY[dtype]))  # pyright: ignore[reportUnknownMemberType]
    return made if torch.device(device).type == "cpu" else made.to(device, non_blocking=True)

"""All copies between a device and Python numbers. A copy to the host may wait for the device, so there are few; a copy to
the device never waits."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.errors import EngineError


def on_host(device: torch.device | str) -> bool:
    """Whether reading single numbers costs nothing. The host would have to wait for an accelerator."""
    return (device if isinstance(device, torch.device) else torch.device(device)).type == "cpu"


def host(x: Tensor) -> Any:
    """A tensor as (nested) lists of Python numbers. From an accelerator through pinned memory and an event: the host waits
    for this tensor, not for work enqueued after it."""
    if x.is_cuda:
        x = _landed(x)
    return x.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def host_array(x: Tensor) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """A tensor of floats as an array in host memory: for parts that look much up by few large vectors."""
    return (_landed(x) if x.is_cuda else x).float().numpy()  # pyright: ignore[reportUnknownMemberType]


def _landed(x: Tensor) -> Tensor:
    there = torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    done.synchronize()
    return there


def read_later(*several: Tensor) -> Callable[[], list[Any]]:
    """Begin copies to the host that nothing waits for. The function returned gives the numbers; it waits only if the copies
    are not done by then."""
    if not any(x.is_cuda for x in several):
        kept = [x.clone() for x in several]
        return lambda: [host(x) for x in kept]
    there = [torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True) for x in several]
    done = torch.cuda.Event()
    done.record()

    def numbers() -> list[Any]:
        done.synchronize()
        return [host(x) for x in there]

    return numbers


_sealed = False


@contextmanager
def sealed() -> Generator[None]:
    """Inside, `put` raises: what runs here is captured, and a replay would not copy new numbers from the host."""
    global _sealed
    before, _sealed = _sealed, True
    try:
        yield
    finally:
        _sealed = before


_NUMPY = {torch.int64: np.int64, torch.float32: np.float32, torch.float64: np.float64, torch.bool: np.bool_}


def put(x: Sequence[Any], device: torch.device | str, dtype: torch.dtype = torch.int64) -> Tensor:
    """Python numbers as a tensor of the device. Made on the host and copied in the order of the device's work; a tensor made
    on the device itself would first wait until it is idle."""
    if _sealed:
        raise EngineError("a function that is captured for replay copies numbers from the host")
    # Through numpy: for a few numbers it takes a third of the time of torch.tensor.
    made = torch.from_numpy(np.array(x, dtype=_NUMPY[dtype]))  # pyright: ignore[reportUnknownMemberType]
    here = (device if isinstance(device, torch.device) else torch.device(device)).type == "cpu"
    return made if here else made.to(device, non_blocking=True)

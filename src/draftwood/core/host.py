"""The one door between a device and Python numbers. The way to the host may wait for the device, so it is taken rarely;
the way to the device never waits."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def host(x: Tensor) -> Any:
    """A tensor as (nested) lists of Python numbers."""
    return x.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def put(x: Sequence[Any], device: torch.device | str, dtype: torch.dtype = torch.int64) -> Tensor:
    """Python numbers as a tensor of the device. Made here and copied from here, in the order of the device's work: asked
    for on the device itself, it would first wait until that is idle."""
    return torch.tensor(x, dtype=dtype).to(device, non_blocking=True)

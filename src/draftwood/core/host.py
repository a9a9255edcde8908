"""The one door from a device to Python numbers. Every call may wait for the device, so there are few of them."""

from typing import Any

from torch import Tensor


def host(x: Tensor) -> Any:
    """A tensor as (nested) lists of Python numbers."""
    return x.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

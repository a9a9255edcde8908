"""How kernels are started: on a GPU each one may begin before the one ahead of it has ended; Triton's interpreter runs them
one after another on a CPU."""

import os
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton decides the same way when a kernel is defined."""


LEAST_CAPABILITY = 9


def overlapped() -> dict[str, Any]:
    """Launch options of a kernel that waits by itself for the one before it (`gdc_wait`), so that its start is hidden."""
    return {"OVERLAPPED": False} if INTERPRETED else {"OVERLAPPED": True, "launch_pdl": True}


@cache
def runs_on(device: torch.device) -> bool:
    """Whether models run in kernels there: on a GPU of compute capability 9 or later. The interpreter is for tests."""
    if find_spec("triton") is None or INTERPRETED or device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device)[0] >= LEAST_CAPABILITY


def _read_bounds_as_numbers() -> None:
    """Triton 3.6's interpreter makes bounds of loops, arrays of one number, integers in a way that NumPy 2.4 refuses."""
    from triton.runtime import interpreter

    before: Any = interpreter._patch_lang_tensor  # pyright: ignore[reportPrivateUsage]

    def patched(tensor: Any, scope: Any) -> None:
        before(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched  # pyright: ignore[reportPrivateUsage]


if INTERPRETED and find_spec("triton") is not None:
    _read_bounds_as_numbers()

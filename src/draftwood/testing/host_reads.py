"""Counts what an accelerator would have to wait for: values read by the host, and shapes that depend on data.

Two modes work together: a dispatch mode does not intercept `tolist` and `cpu` of tensors in host memory, a function mode
intercepts no operation inside another one. On a CPU the same code may take short cuts that read; `as_if_on_a_device`
switches them off, so that a test without an accelerator counts what an accelerator would wait for.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from draftwood.core import host

_READS = frozenset({"tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__"})
_BY_DATA = frozenset(
    {"nonzero", "masked_select", "unique_dim", "_unique2", "unique_consecutive", "_local_scalar_dense", "equal"}
)  # aten operations for whose result or shape the host waits


class HostReads:
    """`with HostReads() as reads: ...`, then `reads.total` and `reads.by_name`."""

    def __init__(self) -> None:
        self.by_name: Counter[str] = Counter()
        self._inside = 0  # a method that reads counts once, however many operations it runs

    @property
    def total(self) -> int:
        return self.by_name.total()

    def __enter__(self) -> "HostReads":
        self._modes = _Functions(self), _Operations(self)
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)

    def count(self, name: str) -> None:
        if not self._inside:
            self.by_name[name] += 1

    def call(
        self, name: str | None, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if name is None:
            return function(*args, **kwargs)
        self.count(name)
        self._inside += 1
        try:
            return function(*args, **kwargs)
        finally:
            self._inside -= 1


class _Functions(TorchFunctionMode):
    def __init__(self, reads: HostReads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        return self.reads.call(name if name in _READS else None, func, args, kwargs or {})


class _Operations(TorchDispatchMode):
    def __init__(self, reads: HostReads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put_", "index_put") and _has_mask(args[1])
        repeats = (
            name == "repeat_interleave" and isinstance(args[0], Tensor) and (kwargs or {}).get("output_size") is None
        )
        if name in _BY_DATA or by_mask or repeats:
            self.reads.count(name)
        return func(*args, **(kwargs or {}))


def _has_mask(indices: Any) -> bool:
    return any(isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in indices)


@contextmanager
def as_if_on_a_device() -> Iterator[None]:
    """Inside, no device counts as the host."""
    real = host.on_host
    host.on_host = lambda device: False  # type: ignore[assignment]
    try:
        yield
    finally:
        host.on_host = real

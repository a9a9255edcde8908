"""The least a pass can take: all bytes that it reads, at the speed at which the device copies its own memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from draftwood.bench.statistics import percentile
from draftwood.models.decoder import Decoder

COPIED = 2**31  # bytes, far more than any cache on the chip
Clock = Callable[[Callable[[], Any]], float]
"""Seconds of a run, to the end of its work on the device."""


def bandwidth(device: torch.device, clock: Clock, size: int = COPIED, repeats: int = 20) -> float:
    """Bytes per second of a copy within the device's memory: every byte is read and written."""
    source = torch.ones(size // 4, dtype=torch.int32, device=device)
    to = torch.empty_like(source)
    seconds = [clock(lambda: to.copy_(source)) for _ in range(repeats + 1)][1:]
    return copied_per_second(source.nbytes, percentile(seconds, 50) or 0.0)


def copied_per_second(size: int, seconds: float) -> float:
    return 2 * size / seconds


def weight_bytes(model: Decoder) -> int:
    """Of one pass: every matrix of the layers, and the head. Of the embedding it reads a row a token."""
    matrices: list[Tensor] = [p for layer in model.layers for p in layer.parameters()]
    head: Any = model.lm_head
    return sum(x.nbytes for x in [*matrices, head.weight])


def entry_bytes(model: Decoder) -> int:
    """Keys and values of one token in all layers."""
    return sum(spec.heads * spec.width * spec.dtype.itemsize for spec in model.cache_specs)


def floor_ms(model: Decoder, batch: int, context: int, bytes_per_second: float) -> float:
    """Milliseconds to read the weights once, and the entries of every sequence."""
    return 1000 * (weight_bytes(model) + batch * context * entry_bytes(model)) / bytes_per_second

"""Which backend runs a model: what `dtype` asks for, and what this machine can do."""

import logging
from functools import cache
from typing import Any

import torch

from draftwood.core.config import ModelConfig
from draftwood.core.model_info import ModelInfo
from draftwood.errors import OptionError
from draftwood.kernels.cpu import build, levels
from draftwood.kernels.cpu.levels import SWITCH, wanted
from draftwood.kernels.cpu.library import Library
from draftwood.models.backends.int8_weights import Int8Weights
from draftwood.models.loading import folder_cache

AUTO, INT8, Q4 = "auto", "int8", "q4"
PACKED = (INT8, Q4)  # run by the int8 kernels: activations in 8 bits, weights in blocks
FLOATS = ("float32", "float64", "bfloat16", "float16")
WIDEST_HEAD = 256  # head_dim; the kernels keep a head's keys on the stack

log = logging.getLogger("draftwood")


def precision(dtype: str | torch.dtype, device: str | torch.device = "cpu") -> str | torch.dtype:
    """One of `PACKED` or a torch type. `auto` is int8 on a CPU and bfloat16 elsewhere."""
    if isinstance(dtype, torch.dtype):
        return dtype
    on_cpu = torch.device(device).type == "cpu"
    if dtype == AUTO:
        return INT8 if on_cpu else torch.bfloat16
    if dtype in PACKED:
        if not on_cpu:
            raise OptionError(f"the {dtype} backend runs on a CPU, not on {device}\nhint: leave out dtype or device")
        return dtype
    if dtype in FLOATS:
        return getattr(torch, dtype)
    raise OptionError(f"dtype cannot be {dtype!r}\nhint: {AUTO}, {', '.join((*PACKED, *FLOATS))}")


def like(info: ModelInfo) -> str | torch.dtype:
    """The precision of a draft model for this target: the same as its own. Weights of a GGUF file keep their types."""
    return AUTO if info.batch_invariant and info.device.type == "cpu" else info.dtype


def supported(config: ModelConfig) -> bool:
    """Whether the int8 backend can run a model of this shape."""
    return config.head_dim <= WIDEST_HEAD


def int8_decoder(config: ModelConfig, weights: Int8Weights) -> Any:
    """A decoder on the best kernels that this machine runs, or on stock operations."""
    library = open_library()
    if library is not None:
        from draftwood.models.backends.int8_native import NativeDecoder

        return NativeDecoder(config, weights, library)
    from draftwood.models.backends.int8_stock import StockDecoder

    return StockDecoder(config, weights)


def open_library() -> Library | None:
    """The compiled kernels; None where there is no compiler or the switch says so."""
    return _open(tuple(level.name for level in wanted()))


@cache
def _open(names: tuple[str, ...]) -> Library | None:
    for level in wanted():
        path = build.library(level, folder_cache.cache_dir() / "kernels")
        try:
            if path is not None:
                return Library.open(level.name, path)
        except OSError as error:
            log.warning("the %s kernels cannot be used: %s", level.name, error)
    if names and levels.chosen() != levels.AUTO:
        raise OptionError(
            f"{SWITCH}={names[0]}: these kernels are not available here: {_why()}\nhint: leave {SWITCH} unset"
        )
    if names:
        log.warning("no native kernels: the int8 backend runs on stock operations, several times slower (%s)", _why())
    return None


def _why() -> str:
    if build.find_compiler() is None:
        return f"no C++ compiler was found; {SWITCH}=stock asks for this without the warning"
    return "see above"

"""Chooses the runner of a model by its device and its abilities."""

from dataclasses import replace

from draftwood.core import host
from draftwood.core.model_info import ModelInfo
from draftwood.core.protocols import Model, Runner
from draftwood.errors import OptionError
from draftwood.models.decoder import Decoder
from draftwood.models.loading.load import Loaded
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.runners.transformers import TransformersRunner


def runner_of(loaded: Loaded, batch_invariant: bool = False) -> Runner:
    """The runner of a model loaded by name. It has no cache yet: an engine opens one."""
    return runner_on(loaded.model, loaded.info, batch_invariant)


def runner_on(model: Model, info: ModelInfo | None = None, batch_invariant: bool = False) -> Runner:
    """The runner of any model; `info` is `model.info` by default. `batch_invariant`: OptionError if it cannot be."""
    known = model.info if info is None else info
    if not host.on_host(known.device) and isinstance(model, Decoder) and known.layer_ranges:
        promised = replace(known, batch_invariant=True) if batch_invariant else known
        return CudaRunner(model, promised, invariant=batch_invariant)
    if batch_invariant and not known.batch_invariant:
        raise OptionError(
            f"batch_invariant: {known.backend or 'this model'} on {known.device} cannot promise it\n"
            "hint: int8 on a CPU, or bfloat16 on a GPU of compute capability 9"
        )
    return CpuRunner(model, known) if known.layer_ranges else TransformersRunner(model, known)

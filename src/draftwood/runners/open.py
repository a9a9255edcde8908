"""Chooses the runner of a model by its device and its abilities."""

from draftwood.core import host
from draftwood.core.model_info import ModelInfo
from draftwood.core.protocols import Model, Runner
from draftwood.models.decoder import Decoder
from draftwood.models.loading.load import Loaded
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.runners.transformers import TransformersRunner


def runner_of(loaded: Loaded) -> Runner:
    """The runner of a model loaded by name. It has no cache yet: an engine opens one."""
    return runner_on(loaded.model, loaded.info)


def runner_on(model: Model, info: ModelInfo | None = None) -> Runner:
    """The runner of any model; `info` is `model.info` by default."""
    known = model.info if info is None else info
    if not known.layer_ranges:
        return TransformersRunner(model, known)
    if not host.on_host(known.device) and isinstance(model, Decoder):
        return CudaRunner(model, known)
    return CpuRunner(model, known)

"""The runner of a model: by where it lies and what it can do."""

from draftwood.core import host
from draftwood.core.model_info import ModelInfo
from draftwood.core.protocols import Model, Runner
from draftwood.models.decoder import Decoder
from draftwood.models.loading.load import Loaded
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.runners.transformers import TransformersRunner


def runner_of(loaded: Loaded) -> Runner:
    """Of a model loaded by name. Without a cache: an engine opens one."""
    return runner_on(loaded.model, loaded.info)


def runner_on(model: Model, info: ModelInfo | None = None) -> Runner:
    """Of any model; without `info` it is what the model says of itself."""
    known = model.info if info is None else info
    if not known.layer_ranges:
        return TransformersRunner(model, known)
    if not host.on_host(known.device) and isinstance(model, Decoder):
        return CudaRunner(model, known)
    return CpuRunner(model, known)

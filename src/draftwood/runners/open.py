"""The runner of a loaded model."""

from draftwood.core.protocols import Model, Runner
from draftwood.models.loading.load import Loaded
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.transformers import TransformersRunner


def runner_on(model: Model) -> Runner:
    """Of a decoder that was built in memory."""
    return CpuRunner(model)


def runner_of(loaded: Loaded) -> Runner:
    """Without a cache: an engine opens one."""
    kind = CpuRunner if loaded.info.layer_ranges else TransformersRunner
    return kind(loaded.model, loaded.info)

"""TransformersRunner: a model of the transformers library, on any device. All of its layers run, or none."""

from dataclasses import replace

from draftwood.core.forward import ALL, ForwardInput, ForwardOutput, LayerPlan
from draftwood.errors import ModelError
from draftwood.runners.cpu import CpuRunner


class TransformersRunner(CpuRunner):
    """Refuses plans that leave layers out: the library has no interface for single layers."""

    def execute(self, x: ForwardInput, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL) -> ForwardOutput:
        count = self.info.num_layers
        if replace(layers, stop=None if layers.stop == count else layers.stop) != ALL:
            raise ModelError(
                f"{self.info.name}: transformers runs all {count} layers, asked for: {layers}\n"
                "hint: recipes that run a part of the layers need a llama, qwen2, qwen3 or mistral model without hf:"
            )
        return super().execute(x, taps=taps, layers=layers)

"""Whole runs that drafters made of drafters have in common: texts that repeat themselves, and options of every kind."""

from typing import Any

import torch

from draftwood.core.sampling.params import SamplingParams
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder

V = CONFIG.vocab_size
MODEL = tiny_decoder(2)
TEXTS = [[1, 2, 3, 1, 2, 4 + i, 1, 2] for i in range(8)]


def params(temperature: float, **more: Any) -> list[SamplingParams]:
    return [SamplingParams(seed=i, max_tokens=24, temperature=temperature, **more) for i in range(len(TEXTS))]


def alternating(tokens: Any) -> torch.Tensor:
    """Even and odd tokens take turns."""
    return torch.arange(V) % 2 == len(tokens) % 2


WAYS: dict[str, tuple[float, dict[str, Any]]] = {
    "greedy": (0.0, {}),
    "sampled": (1.0, {}),
    "penalties": (1.0, {"repetition_penalty": 1.3, "presence_penalty": 0.4}),
    "grammar": (0.7, {"grammar": alternating, "top_p": 0.8}),
}

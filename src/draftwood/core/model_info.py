"""ModelInfo: the properties of a model. No part probes a model's attributes for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from draftwood.core.config import ModelConfig

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True, kw_only=True)
class ModelInfo:
    """One model on one device. The last fields are empty for a model that was built in memory."""

    vocab_size: int
    num_layers: int
    hidden_size: int
    max_positions: int
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    backend: str = ""  # how its products run, for reports
    weights: str = ""  # the block types of its weights, where they are not those that the backend is named after
    batch_invariant: bool = False  # a token's result has the same bits whatever else is in the pass
    reads_blocks: bool = False  # its passes find cache entries through a table of blocks
    layer_ranges: bool = True  # runs any LayerPlan; otherwise all layers or none
    config: ModelConfig | None = None  # the whole shape, of families that have a decoder here
    name: str = ""  # as it was asked for
    fingerprint: str = ""  # tells two targets apart, for parts that were trained on one of them
    tokenizer: Any = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def arithmetic(self) -> str:
        """Backend and block types: what a reader of a report wants to know."""
        return f"{self.weights}, {self.backend} activations" if self.weights else self.backend

    @property
    def near_ties(self) -> bool:
        """Whether rounding may change a greedy text: never where it is batch-invariant, and not in practice in float64."""
        return not self.batch_invariant and self.dtype != torch.float64

    @property
    def control_tokens(self) -> tuple[int, ...]:
        """Special tokens of any kind: end of text, turns, padding."""
        own: Sequence[int] = () if self.tokenizer is None else self.tokenizer.control_tokens
        return tuple(sorted({*self.eos_token_ids, *own}))

"""The float copy of an int8 model computes what the int8 model computes, up to the rounding of activations."""

from typing import Any

import pytest
import torch

from draftwood.core.forward import ForwardInput, HostInput
from draftwood.models.backends import int8_weights
from draftwood.models.backends.float_copy import differentiable
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.models.backends.int8_stock import StockDecoder
from draftwood.models.decoder import Decoder
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.parts.table_model import TableModel, context_free
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder
from native_levels import BEST, kept_weights, opened


def hidden(model: Any) -> torch.Tensor:
    ids = [3, 1, 4, 1, 5]
    runner = CpuRunner(model).open(1, 32)
    runner.admit(0, ids)
    runner.reserve([0], [5])
    x = ForwardInput.of(HostInput(ids, [0] * 5, [*range(5)], [*range(-1, 4)]), [*range(5)], [4], torch.device("cpu"))
    output = runner.execute(x)
    return torch.cat([output.hidden.flatten(), output.logits.flatten()]).clone()


@pytest.mark.parametrize("kind", ["native", "stock"])
def test_a_float_copy_has_the_same_weights(kind: str) -> None:
    weights = int8_weights.from_tensors(CONFIG, kept_weights(CONFIG))
    model: Any = StockDecoder(CONFIG, weights) if kind == "stock" else NativeDecoder(CONFIG, weights, opened(BEST))
    copy = differentiable(model)
    assert isinstance(copy, Decoder) and copy.dtype == torch.float32
    found, right = hidden(copy), hidden(model)
    assert (found - right).norm() / right.norm() < 0.03
    other = differentiable(NativeDecoder(CONFIG, int8_weights.from_tensors(CONFIG, kept_weights(CONFIG)), opened(BEST)))
    assert other is not None and (hidden(other) - found).abs().max() < (1e-4 if kind == "native" else 0.1)


def test_a_float_model_is_its_own_copy_and_a_foreign_one_has_none() -> None:
    model = tiny_decoder()
    assert differentiable(model) is model
    assert differentiable(TableModel(9, context_free([1 / 9] * 9))) is None

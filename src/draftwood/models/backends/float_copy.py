"""A model's layers as products of floats, to differentiate through. An int8 model gets a float32 copy of its own weights, so
that only the rounding of activations is missing."""

from typing import Any

import torch

from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.models.backends.int8_stock import StockDecoder, StockLinear
from draftwood.models.backends.int8_weights import PRODUCTS, LayerWeights, norm_names
from draftwood.models.backends.quantised_blocks import unpack
from draftwood.models.decoder import Backend, Decoder, FloatLinear, Layer


def differentiable(model: Any) -> Decoder | None:
    """The model itself if its products are floats. None for a model whose layers are not ours."""
    if isinstance(model, NativeDecoder):
        w = model.weights
        embedding = FloatLinear(unpack(w.embedding))
        head = embedding if w.head is w.embedding else FloatLinear(unpack(w.head))
        layers = [_unpacked(model, i, each) for i, each in enumerate(w.layers)]
        return Decoder(model.config, embedding, layers, w.norm, head, Backend())
    if isinstance(model, StockDecoder):
        embedding = _rounded(model.embedding)
        head = embedding if model.lm_head is model.embedding else _rounded(model.lm_head)
        layers = [_copied(model, each) for each in model.layers]
        assert model.norm is not None
        return Decoder(model.config, embedding, layers, model.norm, head, Backend())
    return model if isinstance(model, Decoder) else None


def _unpacked(model: NativeDecoder, index: int, w: LayerWeights) -> Layer:
    products = {
        name: FloatLinear(torch.cat([unpack(part) for part in each.parts]), each.bias)
        for name, each in w.products.items()
    }
    return Layer(model.config, index, products, w.norms, Backend())


def _copied(model: StockDecoder, layer: Any) -> Layer:
    norms = {name: getattr(layer, name) for name in norm_names(model.config)}
    found = {name: norm.data for name, norm in norms.items() if norm is not None}
    return Layer(
        model.config, layer.index, {name: _rounded(getattr(layer, name)) for name in PRODUCTS}, found, Backend()
    )


def _rounded(linear: Any) -> FloatLinear:
    assert isinstance(linear, StockLinear)
    return FloatLinear(linear.take(torch.arange(linear.size)), linear.bias)

"""A head that drafts beside the expanded target what it drafted beside the old one.

Its layer gets the heads of the new shape, and at least the target's MLP. It draws from the tokens that it drew from before:
masked rows of the target's LM head are not among them.
"""

from dataclasses import replace

import torch
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.files.store import Head
from draftwood.errors import OptionError
from draftwood.testing.expand.axes import Axes, Axis, joined, layer_axes, widened
from draftwood.testing.expand.fill import Filling
from draftwood.testing.expand.model import query_scale
from draftwood.testing.expand.shape import constant, copies, epsilon

KINDS = ("eagle", "eagle3", "exit", "exit_layer")


def expand_head(head: Head, old: ModelConfig, new: ModelConfig, fingerprint: str, filling: Filling) -> Head:
    """`old` and `new` are the target's, `fingerprint` that of the expanded one."""
    c = head.config
    kept = constant(old, new)
    layer = layer_config(c, old, new)
    make = _Tensors(c, layer, layer_axes(c.layer, layer, bool(kept)), filling)
    found = {name: make(name, t) for name, t in head.tensors.items()}
    if kept:
        _hand_on_the_constant(c, found)
    ids = head.ids
    if ids is None and new.vocab_size > old.vocab_size and (c.kind != "eagle3" or c.target_rows):
        ids = torch.arange(old.vocab_size)
    return Head(replace(c, layer=layer, target_hidden=new.hidden_size), found, ids, fingerprint, dict(head.record))


def layer_config(c: HeadConfig, old: ModelConfig, new: ModelConfig) -> ModelConfig:
    """Of the expanded head's layer. OptionError if this head cannot be expanded."""
    layer = c.layer
    if c.kind not in KINDS:
        raise OptionError(f"heads of kind {c.kind!r} cannot be expanded\nhint: {', '.join(KINDS)}")
    if c.target_hidden != old.hidden_size or layer.hidden_size != old.hidden_size:
        raise OptionError(
            f"a head {layer.hidden_size} wide on features {c.target_hidden} wide cannot be expanded beside a target of "
            f"{old.hidden_size}\nhint: a head as wide as its target"
        )
    if new.head_dim % layer.head_dim or layer.num_kv_heads * copies(layer, new) > new.num_kv_heads:
        raise OptionError(
            f"the head's attention ({layer.num_heads} heads on {layer.num_kv_heads}, {layer.head_dim} wide) does not fit "
            f"into the shape ({new.num_heads} on {new.num_kv_heads}, {new.head_dim} wide)\nhint: another shape"
        )
    return replace(
        layer,
        vocab_size=new.vocab_size,
        hidden_size=new.hidden_size,
        num_heads=new.num_heads,
        num_kv_heads=new.num_kv_heads,
        head_dim=new.head_dim,
        intermediate_size=max(new.intermediate_size, layer.intermediate_size),
        rms_eps=epsilon(layer.rms_eps, old, new, constant(old, new)),
    )


def _hand_on_the_constant(c: HeadConfig, tensors: dict[str, Tensor]) -> None:
    """The norms' epsilon counts on it. A norm before the fusion or before the residual takes it away: then some norms have
    an epsilon that is too small by its square over the old hidden size, 2e-9 at 576."""
    if c.kind == "eagle":
        source = 0  # the embedding
    elif c.kind == "eagle3" and not c.norm_features and not c.norm_fused:
        source = next((i for i, tap in enumerate(c.taps) if tap >= 0), None)  # the final norm scales it
    else:
        return
    if source is not None:
        hidden = tensors["fc.weight"].shape[0]
        tensors["fc.weight"][-1, (source + 1) * hidden - 1] = 1


class _Tensors:
    """Tensors of a head in the new axes, by name."""

    def __init__(self, c: HeadConfig, layer: ModelConfig, axes: Axes, filling: Filling) -> None:
        self.axes, self.filling = axes, filling
        self.scale: Tensor | None = None
        queries = query_scale(c.layer, layer, len(axes.q))
        if queries is not None:
            self.scale = torch.cat([queries, torch.ones(len(axes.k) + len(axes.v), dtype=torch.float64)])
        d, units = c.layer.hidden_size, c.layer.intermediate_size
        normed, raw = (axes.residual, d), (axes.raw, d)
        inputs = [raw, raw] if c.kind == "eagle" else [raw] * len(c.taps)
        read = {"eagle": [raw], "eagle3": [normed, normed]}.get(c.kind, [normed])  # by attention; eagle norms nothing
        self.norms = {"fused_norm": joined(*inputs)}
        self.products: dict[str, tuple[Axis, Axis]] = {
            "fc": (axes.residual, joined(*[normed] * len(inputs) if c.norm_features or c.norm_fused else inputs)),
            "layer.qkv": (axes.qkv, joined(*read)),
            "layer.out": (axes.residual, axes.mixed),
            "layer.gate_up": (joined((axes.gate, units), (axes.up, units)), axes.residual),
            "layer.down": (axes.residual, axes.units),
        }

    def __call__(self, name: str, t: Tensor) -> Tensor:
        base, _, part = name.rpartition(".")
        if base == "lm_head":
            return self.filling.matrix(name, t, widened(len(t), len(t)), self.axes.residual)
        if base not in self.products or part not in ("weight", "bias"):
            return self.filling.gain(t, self.norms.get(name, self.axes.raw))
        rows, columns = self.products[base]
        scale = self.scale if base == "layer.qkv" else None
        if part == "bias":
            return self.filling.bias(t, rows, scale)
        return self.filling.matrix(name, t, rows, columns, scale)

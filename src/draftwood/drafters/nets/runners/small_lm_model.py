"""A small language model made ready to run: its projections folded into the target's tables, in the target's backend.

    embedding   E enter^T   [V, d]        head   W[ids] leave   [rows, d]

so a step reads tables of its own width, and any decoder can run it.
"""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.core.protocols import Model, Runner
from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.files.store import Head
from draftwood.models.backends.choose import AUTO, int8_decoder, like
from draftwood.models.backends.int8_weights import from_tensors
from draftwood.models.decoder import Decoder
from draftwood.models.loading.tensor_names import EMBEDDING, HEAD

_CHUNK = 4096  # rows of a table at a time
_UNITS = 64  # unit vectors at a time


def language_model(head: Head, target: Runner) -> Model:
    """Its head has the rows of `head.ids`, in that order."""
    config = replace(head.config.layer, tie_embeddings=False)
    tensors = folded(head, target)
    backend = like(target.info)
    if backend == AUTO:
        return int8_decoder(config, from_tensors(config, tensors))
    assert isinstance(backend, torch.dtype)
    return Decoder.from_tensors(config, tensors, dtype=backend, device=target.info.device)


@torch.inference_mode()
def folded(head: Head, target: Runner) -> dict[str, Tensor]:
    """Tensors of an ordinary decoder under their Hugging Face names; `lm_head` may have fewer rows than the embedding."""
    filled(head)  # names and shapes fit, or an error says which does not
    dtype = target.info.dtype
    raw = {name: t.to(device=target.info.device, dtype=dtype) for name, t in head.tensors.items()}
    every = torch.arange(target.info.vocab_size, device=raw["norm"].device).split(_CHUNK)
    tensors = {
        EMBEDDING: torch.cat([target.embed(ids).to(dtype) @ raw["enter.weight"].T for ids in every]),
        HEAD: torch.cat([w @ raw["leave.weight"] for w in _rows(target, head.ids, dtype).split(_CHUNK)]),
        "model.norm.weight": raw["norm"],
    }
    for index in range(head.config.layer.num_layers):
        tensors |= _layer(raw, index, head.config.layer)
    return tensors


def _rows(target: Runner, ids: Int[Tensor, "W"] | None, dtype: torch.dtype) -> Float[Tensor, "W H"]:
    """Rows of the target's head: its answers to unit vectors, which every backend multiplies exactly."""
    device, wide = target.info.device, target.info.hidden_size
    kept = slice(None) if ids is None else ids.to(device)
    units = torch.eye(wide, dtype=dtype, device=device).split(_UNITS)
    return torch.cat([target.head(unit, norm=False)[:, kept] for unit in units]).T


def _layer(raw: dict[str, Tensor], index: int, c: ModelConfig) -> dict[str, Tensor]:
    ours, theirs = f"layers.{index}.", f"model.layers.{index}."
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    inner = c.intermediate_size
    parts = {
        "qkv": {"self_attn.q_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv},
        "out": {"self_attn.o_proj": c.hidden_size},
        "gate_up": {"mlp.gate_proj": inner, "mlp.up_proj": inner},
        "down": {"mlp.down_proj": c.hidden_size},
    }
    tensors = {
        f"{theirs}input_layernorm.weight": raw[f"attention_norms.{index}"],
        f"{theirs}post_attention_layernorm.weight": raw[f"{ours}mlp_norm"],
    }
    for name, sizes in parts.items():
        for kind in ("weight", "bias"):
            whole = raw.get(f"{ours}{name}.{kind}")
            if whole is not None:
                pieces = whole.split(list(sizes.values()))
                tensors |= {f"{theirs}{n}.{kind}": t for n, t in zip(sizes, pieces, strict=True)}
    return tensors

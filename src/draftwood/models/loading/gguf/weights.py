"""Converts the tensors of a GGUF file to Hugging Face names, row order and float32. Refuses unknown tensors.

Llama-type files (Mistral's too) store the rows of q and k interleaved, because llama.cpp rotates neighbouring pairs;
Hugging Face rotates halves. Qwen files are stored as they are. See `undo_interleave`.
"""

import re
from collections.abc import Iterator

import numpy as np

from draftwood.core.config import ModelConfig
from draftwood.errors import ModelError, WeightsError
from draftwood.models.loading.gguf.header import TYPES, Header, TensorInfo

WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Gemma's norms: what is added to the residual is normed too. Its norms are stored with the one that is added to them.
IN_NORMED_LAYER = IN_LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
ROPE_FREQS = "rope_freqs.weight"  # becomes RopeScaling, see gguf/config.py
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def hf_name(name: str, header: Header) -> str | None:
    """The Hugging Face name of a GGUF tensor; None for those that carry no weights of their own."""
    if name == ROPE_FREQS or name.endswith(".attn_rot_embd"):
        return None
    if name in WHOLE:
        return WHOLE[name]
    match = LAYER.fullmatch(name)
    known = IN_NORMED_LAYER if _normed(header) else IN_LAYER
    if match is None or match[2] not in known:
        hint = (
            "mixture-of-experts files are not supported" if "_exps" in name or "gate_inp" in name else "is it complete?"
        )
        raise WeightsError(f"{header.path}: tensor {name!r} is not part of any supported model\nhint: {hint}")
    return f"model.layers.{int(match[1])}.{known[match[2]]}.{match[3]}"


def _normed(header: Header) -> bool:
    return header.metadata.get("general.architecture") in ("gemma2", "gemma3")


def hf_shapes(header: Header) -> dict[str, tuple[int, ...]]:
    """Names and shapes as they will be after `tensors`, without reading any data."""
    shapes: dict[str, tuple[int, ...]] = {}
    for info in header.tensors.values():
        name = hf_name(info.name, header)
        if name in shapes:  # blk.0 and blk.00 are two names for one
            raise WeightsError(f"{header.path}: tensor {info.name!r} is a second {name!r}")
        if name is not None:
            shapes[name] = info.shape
    return shapes


def tensors(header: Header, config: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Each tensor by its Hugging Face name, in float32; one at a time, so memory holds one at a time."""
    for info in header.tensors.values():
        name = hf_name(info.name, header)
        if name is not None:
            array, order = dequantise(header, info), row_order(header, config, name, info.shape[0])
            yield name, without_offset(config, name, array if order is None else array[order])


def without_offset(config: ModelConfig, name: str, array: np.ndarray) -> np.ndarray:
    """A tensor as Hugging Face stores it: norms as differences from one where the model adds one to them."""
    return array - np.float32(config.norm_offset) if config.norm_offset and "norm" in name.split(".")[-2] else array


def row_order(header: Header, config: ModelConfig, name: str, rows: int) -> np.ndarray | None:
    """Where in the file each row of a tensor lies; None: in order."""
    if header.metadata["general.architecture"] != "llama":
        return None
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    found = next((count for key, count in heads.items() if f".self_attn.{key}." in name), None)
    return None if found is None else undo_interleave(np.arange(rows), found)


def dequantise(header: Header, info: TensorInfo, some: np.ndarray | None = None) -> np.ndarray:
    """One tensor in float32, in its own shape, or only `some` of its rows. Infinite or undefined weights are refused by
    name."""
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        raise ModelError(
            f"{header.path}: reading a GGUF file needs the gguf package\nhint: pip install gguf"
        ) from error
    rows = raw_rows(info) if some is None else raw_rows(info)[some]
    shape = info.shape if some is None else (len(rows), *info.shape[1:])
    with np.errstate(all="ignore"):  # what overflows is caught below, by name
        array = np.ascontiguousarray(dequantize(rows, GGMLQuantizationType(info.type)), np.float32).reshape(shape)
        finite = np.isfinite(array.sum(dtype=np.float64))
    if not finite:
        raise not_finite(header, info)
    return array


def raw_rows(info: TensorInfo) -> np.ndarray:
    """The bytes of each row of a tensor, mapped."""
    _, block, block_bytes = TYPES[info.type]
    raw = np.memmap(info.file, np.uint8, "r", info.offset, (info.num_bytes,))
    return raw.reshape(-1, info.shape[-1] // block * block_bytes)


def not_finite(header: Header, info: TensorInfo) -> WeightsError:
    """The error for a tensor with weights that are no numbers."""
    return WeightsError(
        f"{header.path}: tensor {info.name!r} ({TYPES[info.type][0]}) holds infinite or undefined (NaN) weights\n"
        "hint: the file is damaged; download it again and compare its checksum"
    )


def undo_interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of one head from pair order to half order: [a0 b0 a1 b1 a2 b2] -> [a0 a1 a2 b0 b1 b2]. Weights or biases."""
    head_dim = rows.shape[0] // num_heads
    pairs = rows.reshape(num_heads, head_dim // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)

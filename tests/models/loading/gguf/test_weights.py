"""Quantised blocks are checked against a plain reading of their layout, written here without numpy's cleverness."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from draftwood.core.config import ModelConfig
from draftwood.errors import WeightsError
from draftwood.models.loading.gguf import weights as gguf_weights
from draftwood.models.loading.gguf.config import read_config
from draftwood.models.loading.gguf.header import TYPES, read_header


def halves(block: bytes, count: int) -> tuple[float, ...]:
    return struct.unpack_from(f"<{count}e", block)


def q8_0(block: bytes) -> list[float]:
    (d,) = halves(block, 1)
    return [d * q for q in struct.unpack_from("<32b", block, 2)]


def q4_0(block: bytes) -> list[float]:
    (d,) = halves(block, 1)
    return [d * ((b & 15) - 8) for b in block[2:]] + [d * ((b >> 4) - 8) for b in block[2:]]


def q4_1(block: bytes) -> list[float]:
    d, m = halves(block, 2)
    return [d * (b & 15) + m for b in block[4:]] + [d * (b >> 4) + m for b in block[4:]]


def scale_and_min(packed: bytes, j: int) -> tuple[int, int]:
    """Sixteen 6-bit numbers in twelve bytes: the top two bits of the first eight hold the rest of the last four."""
    if j < 4:
        return packed[j] & 63, packed[j + 4] & 63
    return (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4, (packed[j + 4] >> 4) | (packed[j] >> 6) << 4


def q4_k(block: bytes) -> list[float]:
    d, dmin = halves(block, 2)
    out = []
    for j in range(8):
        scale, low = scale_and_min(block[4:16], j)
        part = block[16 + 32 * (j // 2) : 48 + 32 * (j // 2)]
        out += [d * scale * (b >> 4 if j % 2 else b & 15) - dmin * low for b in part]
    return out


def q5_k(block: bytes) -> list[float]:
    d, dmin = halves(block, 2)
    high = block[16:48]
    out = []
    for j in range(8):
        scale, low = scale_and_min(block[4:16], j)
        part = block[48 + 32 * (j // 2) : 80 + 32 * (j // 2)]
        for i, b in enumerate(part):
            q = (b >> 4 if j % 2 else b & 15) + 16 * (high[i] >> j & 1)
            out.append(d * scale * q - dmin * low)
    return out


def q6_k(block: bytes) -> list[float]:
    scales = struct.unpack_from("<16b", block, 192)
    (d,) = struct.unpack_from("<e", block, 208)
    out = []
    for half in range(2):
        low, high = block[64 * half :][:64], block[128 + 32 * half :][:32]
        for quarter in range(4):
            for i in range(32):
                nibble = low[i + 32 * (quarter % 2)] >> 4 * (quarter // 2) & 15
                q = (nibble | (high[i] >> 2 * quarter & 3) << 4) - 32
                out.append(d * scales[8 * half + 2 * quarter + i // 16] * q)
    return out


def f16(block: bytes) -> list[float]:
    return list(struct.unpack("<e", block))


def bf16(block: bytes) -> list[float]:
    return list(struct.unpack("<f", b"\0\0" + block))


def f32(block: bytes) -> list[float]:
    return list(struct.unpack("<f", block))


# the plain reading, and where the 16-bit scales lie in a block
LAYOUTS = {
    "F32": (f32, ()),
    "F16": (f16, (0,)),
    "BF16": (bf16, ()),
    "Q8_0": (q8_0, (0,)),
    "Q4_0": (q4_0, (0,)),
    "Q4_1": (q4_1, (0, 2)),
    "Q4_K": (q4_k, (0, 2)),
    "Q5_K": (q5_k, (0, 2)),
    "Q6_K": (q6_k, (208,)),
}
SIZES = {label: (block, size) for label, block, size in TYPES.values()}


def random_blocks(kind: str, rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Valid blocks of random content: any bytes but the scales, which must be finite."""
    block, size = SIZES[kind]
    noise = np.random.default_rng(seed)
    if kind in ("F32", "BF16"):
        values = noise.normal(size=(rows, width)).astype("<f4").view(np.uint8).reshape(rows, width, 4)
        return np.ascontiguousarray(values[..., 4 - size :]).reshape(rows, -1)
    raw = noise.integers(0, 256, (rows * width // block, size), dtype=np.uint8)
    for at in LAYOUTS[kind][1]:
        raw[:, at : at + 2] = noise.normal(size=(len(raw), 1)).astype("<f2").view(np.uint8)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_blocks_are_read_as_their_layout_says(write_gguf, kind: str):
    raw = random_blocks(kind, rows=3, width=512)
    header = read_header(write_gguf(tensors={}, raw={"blk.0.ffn_down.weight": (raw, kind)}))
    ours = gguf_weights.dequantise(header, header.tensors["blk.0.ffn_down.weight"])
    plain, size = LAYOUTS[kind][0], SIZES[kind][1]
    data = raw.tobytes()
    wanted = [value for at in range(0, len(data), size) for value in plain(data[at : at + size])]
    assert ours.shape == (3, 512) and ours.dtype == np.float32
    np.testing.assert_allclose(ours.reshape(-1), wanted, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_undefined_weights_are_refused_by_name(write_gguf, value: float):
    raw = random_blocks("Q8_0", rows=2, width=64)
    raw[1, :2] = np.array([value], "<f2").view(np.uint8)
    header = read_header(write_gguf(tensors={}, raw={"token_embd.weight": (raw, "Q8_0")}))
    with pytest.raises(WeightsError, match=r"'token_embd.weight' \(Q8_0\) holds infinite or undefined"):
        gguf_weights.dequantise(header, header.tensors["token_embd.weight"])


FAMILIES = {
    "llama": {},
    "llama with biases": {"qkv_bias": True, "out_bias": True, "mlp_bias": True, "tie_embeddings": False},
    "qwen2": {"family": "qwen2", "qkv_bias": True},
    "qwen3": {"family": "qwen3", "qk_norm": True, "head_dim": 16},
}


@pytest.mark.parametrize("case", FAMILIES)
def test_every_family_comes_back_as_it_was(write_gguf, make_weights, tiny: ModelConfig, case: str):
    config = replace(tiny, **FAMILIES[case])
    header = read_header(write_gguf(config))
    assert read_config(header) == config
    found = dict(gguf_weights.tensors(header, config))
    wanted = make_weights(config)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert np.array_equal(found[name], tensor.numpy()), name
    assert gguf_weights.hf_shapes(header) == {name: tuple(t.shape) for name, t in wanted.items()}


def test_rows_of_q_and_k_are_stored_in_another_order_and_no_others(write_gguf, tiny: ModelConfig, weights):
    """The twin: without undoing it, q and k of a Llama file are wrong, and everything else is right."""
    header = read_header(write_gguf())
    stored = {
        gguf_weights.hf_name(name, header): gguf_weights.dequantise(header, info)
        for name, info in header.tensors.items()
    }
    wrong = {name for name, array in stored.items() if not np.array_equal(array, weights[name].numpy())}
    assert wrong == {f"model.layers.{i}.self_attn.{p}_proj.weight" for i in range(tiny.num_layers) for p in "qk"}


def test_a_transformers_llama_survives_the_trip_through_gguf(write_gguf, to_gguf, tiny: ModelConfig):
    from transformers import LlamaConfig, LlamaForCausalLM

    from draftwood.models.loading import hf_config

    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**hf_config.unparse(tiny), pad_token_id=None))
    before = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    header = read_header(write_gguf(tensors=to_gguf(tiny, before)))
    after = dict(gguf_weights.tensors(header, read_config(header)))
    assert after.keys() == before.keys()
    assert all(np.array_equal(after[name], tensor.numpy()) for name, tensor in before.items())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("blk.0.ffn_gate_exps.weight", "mixture-of-experts"),
        ("blk.0.ssm_in.weight", "complete"),
        ("blk.x.attn_q.weight", "complete"),
        ("rope_factors_long.weight", "complete"),
    ],
)
def test_unknown_tensor_is_refused_by_name(write_gguf, name: str, hint: str):
    header = read_header(write_gguf(tensors={name: np.zeros((4, 4), np.float32)}))
    with pytest.raises(WeightsError, match=rf"(?s){name}.*hint: .*{hint}"):
        gguf_weights.hf_shapes(header)


def test_two_spellings_of_one_tensor_are_refused(write_gguf):
    twice = {name: np.zeros((4, 4), np.float32) for name in ("blk.0.attn_q.weight", "blk.00.attn_q.weight")}
    with pytest.raises(WeightsError, match="is a second"):
        gguf_weights.hf_shapes(read_header(write_gguf(tensors=twice)))


def test_missing_gguf_package_is_explained(write_gguf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import sys

    from draftwood.errors import ModelError

    header = read_header(write_gguf())
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelError, match="pip install gguf"):
        gguf_weights.dequantise(header, header.tensors["token_embd.weight"])

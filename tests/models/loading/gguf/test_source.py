"""Weights go from a file's blocks to their packed form unchanged, a few rows at a time."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from draftwood.core.config import ModelConfig
from draftwood.errors import WeightsError
from draftwood.models.backends.int8_weights import from_source
from draftwood.models.backends.quantised_blocks import Kind, unpack
from draftwood.models.loading.gguf import source as module
from draftwood.models.loading.gguf.config import read_config
from draftwood.models.loading.gguf.source import EXPONENTS, SCALES, GgufSource
from draftwood.models.loading.gguf.split import read_model
from draftwood.models.loading.gguf.weights import tensors
from draftwood.models.loading.load import fingerprint, fingerprint_of
from draftwood.testing.random_gguf import SHAPES, write

WIDE = dict(hidden_size=256, num_heads=8, num_kv_heads=4, head_dim=32, intermediate_size=256)
MIXED = {
    "attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K", "attn_output": "Q5_K", "ffn_gate": "Q4_0", "ffn_up": "IQ4_XS",
    "ffn_down": "Q3_K",
}  # fmt: skip


def random_blocks(kind: str, rows: int, columns: int, seed: int) -> np.ndarray:
    """Random bytes whose scales are small finite numbers."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = np.random.default_rng(seed).integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    for at in {**SCALES, "Q3_K": (108,)}[kind]:
        raw[..., at + 1] = raw[..., at + 1] % 8 + 8  # high byte of a half: its exponent
    return raw.reshape(rows, -1)


@pytest.fixture
def mixed(tiny: ModelConfig, to_gguf, write_gguf, make_weights) -> tuple[Path, ModelConfig]:
    """A file in which neighbours within a product differ in type, with an F16 embedding and a head of its own."""
    config = replace(tiny, **WIDE, tie_embeddings=False)
    stored = to_gguf(config, make_weights(config))
    raw: dict[str, tuple[np.ndarray, str]] = {}
    for seed, name in enumerate(sorted(stored)):
        kind = MIXED.get(
            name.split(".")[2] if name.startswith("blk") else "", "Q8_0" if name == "output.weight" else ""
        )
        if kind:
            raw[name] = random_blocks(kind, stored[name].shape[0], stored[name].shape[1], seed), kind
    plain = {name: array for name, array in stored.items() if name not in raw}
    plain["token_embd.weight"] = plain["token_embd.weight"].astype(np.float16)
    return write_gguf(config, plain, raw), config


@pytest.mark.parametrize("size", [1, 1 << 23])
def test_packed_weights_are_those_of_the_file_in_their_own_types(mixed, size: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SLICE", size)
    path, config = mixed
    header = read_model(path)
    assert read_config(header) == config
    floats = {name: torch.tensor(array) for name, array in tensors(header, config)}
    weights = from_source(config, GgufSource(header, config))
    for i, layer in enumerate(weights.layers):
        at = f"model.layers.{i}."
        qkv = torch.cat([unpack(part) for part in layer.products["qkv"].parts])
        right = torch.cat([floats[f"{at}self_attn.{n}_proj.weight"] for n in "qkv"])
        assert torch.equal(qkv, right)
        assert [part.kind for part in layer.products["qkv"].parts] == [Kind.Q4_K, Kind.Q6_K]
        assert [part.kind for part in layer.products["gate_up"].parts] == [Kind.Q4_0, Kind.IQ4_XS]
        out = layer.products["out"].parts
        assert len(out) == 1 and torch.equal(unpack(out[0]), floats[f"{at}self_attn.o_proj.weight"])
        down = unpack(layer.products["down"].parts[0])  # Q3_K has no kernel and is rounded to 8 bits
        wanted = floats[f"{at}mlp.down_proj.weight"]
        assert 0 < float((down - wanted).abs().max()) < 0.01 * float(wanted.abs().max())
    assert torch.equal(unpack(weights.head), floats["lm_head.weight"]) and weights.head.kind is Kind.Q8_0
    assert weights.embedding.kind is Kind.F16 and weights.embedding is not weights.head
    assert torch.equal(unpack(weights.embedding), floats["model.embed_tokens.weight"])
    assert torch.equal(weights.norm, floats["model.norm.weight"])


def test_fingerprint_is_that_of_the_floats(mixed):
    path, config = mixed
    header = read_model(path)
    floats = {name: torch.tensor(array) for name, array in tensors(header, config)}
    assert fingerprint_of(config, GgufSource(header, config).last_rows) == fingerprint(config, floats)


@pytest.mark.parametrize("kind", sorted(SCALES))
def test_undefined_scales_are_refused_by_name(tiny: ModelConfig, write_gguf, to_gguf, make_weights, kind: str):
    config = replace(tiny, **WIDE)
    stored = to_gguf(config, make_weights(config))
    name = "blk.1.ffn_up.weight"
    for at in SCALES[kind]:
        raw = random_blocks(kind, stored[name].shape[0], stored[name].shape[1], 1)
        size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
        raw.reshape(-1, size)[7, at + 1] = 0x7C  # infinite
        plain = {key: array for key, array in stored.items() if key != name}
        header = read_model(write_gguf(config, plain, {name: (raw, kind)}))
        with pytest.raises(WeightsError, match=rf"tensor '{name}' \({kind}\) holds infinite"):
            from_source(config, GgufSource(header, config))


def in_floats(
    kind: str, stored: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, tuple[np.ndarray, str]]]:
    """What a file of this type holds: vectors in float32, matrices as their bytes."""
    types = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    matrices = {name: torch.tensor(array).to(types[kind]) for name, array in stored.items() if array.ndim == 2}
    raw = {name: (array.view(torch.uint8).numpy(), kind) for name, array in matrices.items()}
    return {name: array for name, array in stored.items() if name not in raw}, raw


@pytest.mark.parametrize("kind", sorted(EXPONENTS))
def test_floats_stay_as_they_are_in_as_many_bytes(tiny: ModelConfig, write_gguf, to_gguf, make_weights, kind: str):
    config = replace(tiny, **WIDE)
    header = read_model(write_gguf(config, *in_floats(kind, to_gguf(config, make_weights(config)))))
    floats = {name: torch.tensor(array) for name, array in tensors(header, config)}
    source = GgufSource(header, config)
    weights = from_source(config, source)
    assert source.has_floats and weights.kinds == {Kind[kind]}
    assert torch.equal(unpack(weights.embedding), floats["model.embed_tokens.weight"])
    for i, layer in enumerate(weights.layers):
        (down,) = layer.products["down"].parts
        assert torch.equal(unpack(down), floats[f"model.layers.{i}.mlp.down_proj.weight"])
    assert weights.bytes_per_pass <= 1.05 * source.num_bytes()


@pytest.mark.parametrize("kind", sorted(EXPONENTS))
def test_floats_are_rounded_to_eight_bits_where_that_is_asked_for(tiny, write_gguf, to_gguf, make_weights, kind: str):
    """The twin: what is rounded is not what the file holds."""
    config = replace(tiny, **WIDE)
    header = read_model(write_gguf(config, *in_floats(kind, to_gguf(config, make_weights(config)))))
    kept, rounded = (from_source(config, GgufSource(header, config, eight_bits=eight)) for eight in (False, True))
    assert rounded.kinds == {Kind.Q8_0} and rounded.bytes_per_pass < 0.6 * kept.bytes_per_pass
    gap = (unpack(rounded.head) - unpack(kept.head)).abs().max()
    assert 0 < float(gap) < 0.01 * float(unpack(kept.head).abs().max())


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("kind", sorted(EXPONENTS))
def test_undefined_floats_are_refused_by_name(tiny, write_gguf, to_gguf, make_weights, kind: str, wrong: float):
    config, name = replace(tiny, **WIDE), "blk.1.ffn_up.weight"
    stored = to_gguf(config, make_weights(config))
    stored[name][3, 5] = wrong
    header = read_model(write_gguf(config, *in_floats(kind, stored)))
    with pytest.raises(WeightsError, match=rf"tensor '{name}' \({kind}\) holds infinite"):
        from_source(config, GgufSource(header, config))
    stored[name][3, 5] = 60000.0  # large, and a number
    header = read_model(write_gguf(config, *in_floats(kind, stored)))
    assert from_source(config, GgufSource(header, config)).kinds == {Kind[kind]}


# --- how much memory it takes


MB = 1 << 20
LOAD = """
import sys
from draftwood.models.loading.load import load
load(sys.argv[1], dtype=sys.argv[2], device="cpu")
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak(path: Path, dtype: str, environment: dict[str, str]) -> int:
    """Bytes of memory that a process which loads the file has at most."""
    run = [sys.executable, "-c", LOAD, str(path), dtype]
    return 1024 * int(subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="peak memory is read from Linux")
@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_floats_are_loaded_within_the_size_of_their_file(
    tmp_path: Path, child_env: Callable[[], dict[str, str]], kind: str
):
    path, cache = tmp_path / "model.gguf", tmp_path / "cache"
    size = write(path, SHAPES["smollm2-135m"], kind)
    environment = child_env() | {"DRAFTWOOD_CACHE": str(cache)}
    least = 1.25 * size + 400 * MB
    for _ in range(2):  # packed, then from the copy
        assert peak(path, "auto", environment) < least
    copies = [
        sum(file.stat().st_size for file in folder.iterdir())
        for folder in cache.glob("models/packed*")
        if folder.is_dir()
    ]
    assert len(copies) == 1 and copies[0] < 1.1 * size
    assert peak(path, "float32", environment) > least, "the twin: a float32 copy would be seen"

"""Packed weights behind a file are the same bytes, whether the file is read or mapped."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.errors import WeightsError
from draftwood.models.backends import packed_file
from draftwood.models.backends.int8_weights import Entry, Int8Weights, Rows, TensorSource, entries, from_tensors
from draftwood.models.backends.quantised_blocks import Kind, Packed
from draftwood.testing.parts.tiny import CONFIG, tiny_weights
from mixed_blocks import mixed

SHAPES: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_embeddings": False},
    "biases": {"qkv_bias": True, "out_bias": True, "mlp_bias": True},
    "qk norm": {"qk_norm": True, "head_dim": 16},
}


def written(name: str, folder: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    config = replace(CONFIG, **SHAPES[name])
    tensors = tiny_weights(1, config)
    packed_file.write(entries(config, TensorSource(tensors)), folder, {"fingerprint": "abc"})
    return config, tensors


def flat(weights: Int8Weights) -> dict[str, Packed | Tensor]:
    """Everything by a name of its own."""
    found: dict[str, Packed | Tensor] = {"embedding": weights.embedding, "head": weights.head, "norm": weights.norm}
    for i, layer in enumerate(weights.layers):
        for name, product in layer.products.items():
            found |= {f"{i}.{name}.{j}": part for j, part in enumerate(product.parts)}
        found |= {f"{i}.{name}.bias": p.bias for name, p in layer.products.items() if p.bias is not None}
        found |= {f"{i}.{name}": norm for name, norm in layer.norms.items()}
    return found


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_file_gives_back_every_byte(name, mapped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packed_file, "MAPPED", 0 if mapped else 1 << 40)
    config, tensors = written(name, tmp_path)
    weights = from_tensors(config, tensors)
    loaded, note = packed_file.read(tmp_path, config)
    assert note == {"fingerprint": "abc"}
    left, right = flat(weights), flat(loaded)
    assert left.keys() == right.keys()
    for key, mine in left.items():
        theirs = right[key]
        if isinstance(mine, Packed):
            assert isinstance(theirs, Packed) and torch.equal(mine.data, theirs.data)
            assert (mine.rows, mine.columns, mine.kind) == (theirs.rows, theirs.columns, theirs.kind)
            assert theirs.data.data_ptr() % 64 == 0
        else:
            assert isinstance(theirs, Tensor) and torch.equal(mine, theirs)
    assert (loaded.head is loaded.embedding) == config.tie_embeddings
    assert loaded.bytes_per_pass == weights.bytes_per_pass


def listed(weights: Int8Weights) -> Iterator[Entry]:
    """Finished weights as they would arrive from a source."""
    for name, x in {**flat(weights)}.items():
        name = name.removesuffix(".0") if name.count(".") == 2 else name
        yield name, Rows(x.rows, x.columns, x.kind, [x]) if isinstance(x, Packed) else x


def test_parts_of_many_types_come_back_from_the_file(tmp_path: Path):
    config, weights = mixed(head=Kind.Q4_K)
    packed_file.write(listed(weights), tmp_path, {})
    loaded, _ = packed_file.read(tmp_path, config)
    assert loaded.head.kind is Kind.Q4_K and loaded.bytes_per_pass == weights.bytes_per_pass
    left, right = flat(weights), flat(loaded)
    assert left.keys() == right.keys() and any(name.endswith(".1") and name.count(".") == 2 for name in left)
    for name, mine in left.items():
        theirs = right[name]
        if isinstance(mine, Packed):
            assert isinstance(theirs, Packed) and torch.equal(mine.data, theirs.data) and mine.kind is theirs.kind


def test_writing_to_mapped_weights_leaves_the_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packed_file, "MAPPED", 0)
    config, _ = written("tied", tmp_path)
    before = (tmp_path / packed_file.DATA).read_bytes()
    packed_file.read(tmp_path, config)[0].embedding.data.zero_()
    assert (tmp_path / packed_file.DATA).read_bytes() == before


def test_progress_adds_up_to_the_file(tmp_path: Path):
    said: list[int] = []
    config = CONFIG
    packed_file.write(entries(config, TensorSource(tiny_weights(1, config))), tmp_path, {}, said.append)
    padding = 64 * len(said)
    assert 0 <= (tmp_path / packed_file.DATA).stat().st_size - sum(said) < padding


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        *(("untied", entry) for entry in ("embedding", "head", "norm", "0.qkv", "3.down", "1.attention_norm", "2.mlp_norm")),
        *(("qk norm", entry) for entry in ("0.q_norm", "3.k_norm")),
        *(("biases", entry) for entry in ("0.qkv.bias", "1.out.bias", "2.gate_up.bias", "3.down.bias")),
    ],
)  # fmt: skip
def test_missing_entry_is_named(name, entry, tmp_path: Path):
    config, _ = written(name, tmp_path)
    index = json.loads((tmp_path / packed_file.INDEX).read_text())
    left = [e for e in index["tensors"] if e["name"] != entry]
    assert len(left) == len(index["tensors"]) - 1
    (tmp_path / packed_file.INDEX).write_text(json.dumps(index | {"tensors": left}))
    with pytest.raises(WeightsError, match=f"has no {entry}\n"):
        packed_file.read(tmp_path, config)

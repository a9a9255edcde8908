"""Files with random weights are whole models of the shape and types that were asked for."""

import sys
from pathlib import Path

import pytest
import torch

from draftwood.llm import LLM
from draftwood.models.backends.choose import open_library
from draftwood.models.loading.gguf.config import read_config
from draftwood.models.loading.gguf.header import TYPES, read_header
from draftwood.models.loading.gguf.source import GgufSource
from draftwood.testing import random_gguf
from draftwood.testing.random_gguf import SHAPES, write


@pytest.mark.one_in(7)
@pytest.mark.parametrize("kind", ["Q4_K_M", "Q4_0", "Q8_0", "Q6_K", "F16", "BF16", "F32"])
def test_weights_have_the_asked_types_and_a_sensible_scale(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(random_gguf, "POOL", 1 << 20)
    path = tmp_path / "model.gguf"
    size = write(path, SHAPES["tiny"], kind)
    assert size == path.stat().st_size
    header = read_header(path)
    config = read_config(header)
    assert (config.hidden_size, config.num_layers, config.vocab_size, config.tie_embeddings) == (256, 2, 49152, True)
    types = {name: TYPES[info.type][0] for name, info in header.tensors.items()}
    assert types["blk.0.ffn_gate.weight"] == {"Q4_K_M": "Q4_K"}.get(kind, kind)
    assert types["token_embd.weight"] == (kind if kind in ("Q8_0", "F16", "BF16", "F32") else "Q6_K")
    assert types["blk.1.attn_v.weight"] == {"Q4_K_M": "Q6_K"}.get(kind, kind)
    source = GgufSource(header, config)
    for name in ("model.embed_tokens.weight", "model.layers.1.self_attn.v_proj.weight"):
        rows = torch.frombuffer(bytearray(source.last_rows(name)), dtype=torch.float32)
        assert 0.8 < float(rows.std()) * 16 < 1.2 and abs(float(rows.mean())) * 16 < 0.2


@pytest.mark.slow
def test_a_model_runs_and_stays_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    open_library()  # before the test has a cache of its own
    monkeypatch.setattr(random_gguf, "POOL", 1 << 20)
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path / "model.gguf"), "--shape", "tiny", "--type", "Q4_K_M"])
    random_gguf.main()
    llm = LLM(str(tmp_path / "model.gguf"), "autoregressive", device="cpu")
    answer = llm.generate("hello", max_tokens=4, temperature=0)
    assert answer.finish_reason == "length" and len(answer.token_ids) == 4

"""Every architecture says what transformers says: from a Hugging Face folder and from a GGUF file, in floats and in int8."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from batch_invariance import batch_invariance_faults
from draftwood.cache.dense import DenseCache
from draftwood.core.config import ModelConfig
from draftwood.core.forward import ForwardInput
from draftwood.models.backends.choose import open_library
from draftwood.models.loading import hf_config
from draftwood.models.loading.load import Loaded, load

pytestmark = pytest.mark.slow

SHAPE: dict[str, Any] = {
    "vocab_size": 264, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 256, "eos_token_id": 257,
    "attn_implementation": "eager", "pad_token_id": None, "rms_norm_eps": 1e-5,
}  # fmt: skip
THETA = 1000.0
YARN = {"rope_type": "yarn", "rope_theta": THETA, "factor": 4.0, "original_max_position_embeddings": 32}
LOCAL = {"rope_type": "default", "rope_theta": 100.0}
GEMMA2 = {"head_dim": 32, "sliding_window": 6, "query_pre_attn_scalar": 32}
GEMMA3 = GEMMA2 | {
    "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": THETA}, "sliding_attention": LOCAL}
}
FAR = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": THETA}, "sliding_attention": LOCAL}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, yarn": ("Llama", {"rope_parameters": YARN}),
    "qwen2, windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}),
    "qwen3, yarn": ("Qwen3", {"head_dim": 32, "rope_parameters": YARN}),
    "gemma2": ("Gemma2", {**GEMMA2, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}),
    "gemma2, untied": ("Gemma2", {**GEMMA2, "tie_word_embeddings": False}),
    "gemma3": ("Gemma3", {**GEMMA3, "layer_types": ["sliding_attention", "full_attention"] * 2}),
    "gemma3, long": (
        "Gemma3",
        {**GEMMA3, "rope_parameters": FAR, "final_logit_softcapping": 4.0, "num_hidden_layers": 6},
    ),
}
TEXT = [5, 81, 3, 40, 22, 22, 7, 60, 11, 200, 131, 9, 77, 3, 3, 150]


class Case:
    """A transformers model with random weights, and the logits of a text."""

    def __init__(self, name: str) -> None:
        family, changes = MODELS[name]
        kind = f"{family}TextConfig" if family == "Gemma3" else f"{family}Config"
        self.net = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, kind)(**SHAPE | changes)).eval()
        noise = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.net.parameters():
                spread = torch.randn(parameter.shape, generator=noise)
                parameter.copy_(1 + 0.3 * spread if parameter.ndim == 1 and parameter.mean() > 0.5 else 0.15 * spread)
            self.logits: Tensor = self.net(torch.tensor([TEXT]), use_cache=False).logits[0]
        self.raw: dict[str, Any] = self.net.config.to_dict()
        self.config: ModelConfig = hf_config.parse(self.raw)
        tied = self.config.tie_embeddings
        state = self.net.state_dict().items()
        self.tensors = {key: tensor.clone() for key, tensor in state if not (tied and key == "lm_head.weight")}


@pytest.fixture(scope="module")
def cases() -> Callable[[str], Case]:
    open_library()  # before a test has a cache of its own, in which the kernels would be compiled again
    made: dict[str, Case] = {}
    return lambda name: made[name] if name in made else made.setdefault(name, Case(name))


@pytest.fixture
def folder(cases, write_folder) -> Callable[[str], Path]:
    def write(name: str) -> Path:
        case = cases(name)
        path = write_folder(tensors=case.tensors)
        (path / "config.json").write_text(json.dumps(case.raw))
        return path

    return write


@pytest.fixture
def file(cases, write_gguf, to_gguf, cache: Path) -> Callable[[str], Path]:
    def write(name: str) -> Path:
        case = cases(name)
        keys = {"gemma3.rope.freq_base_swa": case.config.local_rope_theta} if case.config.local_rope_theta else {}
        return write_gguf(case.config, to_gguf(case.config, case.tensors), **keys)

    return write


def said(loaded: Loaded, sizes: tuple[int, ...] = (len(TEXT),)) -> Tensor:
    """Logits of the text, read in chunks."""
    store = DenseCache(loaded.model.cache_specs, slots=1, capacity=64)
    store.admit(0, [])
    found: list[Tensor] = []
    for size in sizes:
        done = sum(map(len, found))
        row = torch.arange(size)
        x = ForwardInput(torch.tensor(TEXT[done : done + size]), row * 0, done + row, row, row - 1, row)
        found.append(loaded.model.forward(x, store).logits)
        store.commit([0], [list(range(size))])
    return torch.cat(found)


@pytest.mark.parametrize("source", ["folder", "file"])
@pytest.mark.parametrize("name", MODELS)
def test_floats_say_what_transformers_says(name: str, source: str, cases, request: pytest.FixtureRequest):
    path = request.getfixturevalue(source)(name)
    loaded = load(str(path), dtype="float32")
    assert replace(loaded.config, family="llama", max_positions=1) == replace(
        cases(name).config, family="llama", max_positions=1
    )
    for sizes in ((16,), (7, 1, 8)):
        assert float((said(loaded, sizes) - cases(name).logits).abs().max()) < 2e-5


@pytest.mark.parametrize("backend", ["auto", "stock"])
@pytest.mark.parametrize("source", ["folder", "file"])
@pytest.mark.parametrize("name", MODELS)
def test_int8_says_the_same_up_to_its_rounding(
    name: str, source: str, backend: str, cases, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    if backend == "stock":
        monkeypatch.setenv("DRAFTWOOD_CPU", "stock")
    loaded = load(str(request.getfixturevalue(source)(name)), device="cpu")
    right = cases(name).logits
    far = (said(loaded) - right).pow(2).mean().sqrt() / right.pow(2).mean().sqrt()
    assert loaded.info.batch_invariant and float(far) < 0.08
    assert torch.equal(said(loaded), said(loaded, (7, 1, 8)))


@pytest.mark.parametrize("backend", ["auto", "stock"])
@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_int8_is_batch_invariant(name: str, backend: str, folder, monkeypatch: pytest.MonkeyPatch):
    if backend == "stock":
        monkeypatch.setenv("DRAFTWOOD_CPU", "stock")
    assert not list(batch_invariance_faults(load(str(folder(name)), device="cpu").model, seed=3))


WRONG: dict[str, dict[str, Any]] = {
    "norms": {"norm_offset": 0.0},
    "activation": {"activation": "silu"},
    "embedding": {"embedding_scale": 1.0},
    "scores": {"attention_cap": None},
    "logits": {"logit_cap": None},
    "windows": {"full_layers": ()},
    "no window": {"sliding_window": None},
}


@pytest.mark.parametrize("change", WRONG)
def test_a_decoder_that_leaves_one_thing_out_is_noticed(change: str, cases):
    from draftwood.models.decoder import Decoder

    case = cases("gemma2")
    config = replace(case.config, **WRONG[change])
    loaded: Any = type("Wrong", (), {"model": Decoder.from_tensors(config, case.tensors)})
    assert float((said(loaded) - case.logits).abs().max()) > 1e-3


@pytest.mark.parametrize("change", [{"local_rope_theta": None}, {"rope_scaling": None}, {"qk_norm": False}])
def test_a_wrong_rope_or_head_norm_is_noticed(change: dict[str, Any], cases):
    from draftwood.models.decoder import Decoder

    case = cases("gemma3, long")
    tensors = (
        case.tensors if change.get("qk_norm", True) else {k: t for k, t in case.tensors.items() if "q_norm" not in k}
    )
    loaded: Any = type("Wrong", (), {"model": Decoder.from_tensors(replace(case.config, **change), tensors)})
    assert float((said(loaded) - case.logits).abs().max()) > 1e-3

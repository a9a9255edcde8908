"""hf:NAME: a transformers model in our engine writes what transformers itself would write."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache as remembered
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftwood import LLM
from draftwood.cache.dense import DenseCache
from draftwood.core.config import EngineConfig, ModelConfig
from draftwood.core.forward import FINAL, ForwardInput
from draftwood.errors import DownloadError, ModelError, TokenizerError, UnknownNameError, WeightsError
from draftwood.models.hf.model import HFConfig, HFModel
from draftwood.models.loading.load import Loaded, load

pytestmark = pytest.mark.slow

SHAPE: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": None,
}
GROUPED: dict[str, Any] = {"num_key_value_heads": 2, "intermediate_size": 64, "head_dim": 8}
CONFIGS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: transformers.GPT2Config(**SHAPE),
    "llama": lambda: transformers.LlamaConfig(**SHAPE | GROUPED),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**SHAPE, intermediate_size=64),
    "opt": lambda: transformers.OPTConfig(**SHAPE, ffn_dim=64, word_embed_proj_dim=32),
    "mistral": lambda: transformers.MistralConfig(**SHAPE | GROUPED, sliding_window=7),
    "gemma2": lambda: transformers.Gemma2Config(**SHAPE | GROUPED, sliding_window=7, final_logit_softcapping=5.0),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SHAPE | GROUPED, sliding_window=7),
    "cohere": lambda: transformers.CohereConfig(**SHAPE | GROUPED, logit_scale=0.25),
    "mixtral": lambda: transformers.MixtralConfig(**SHAPE | GROUPED, num_local_experts=4),
}
SOME = ("gpt2", "llama", "gemma2")
TEXT = [104, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100]

#     0 ┬ 1 ─ 3
#       └ 2 ┬ 4 ─ 6
#           └ 5
TREE = [7, 30, 31, 9, 50, 9, 17]
PARENTS = [-1, 0, 0, 1, 2, 2, 4]


@remembered
def net(kind: str) -> Any:
    """A small model, its weights large enough that attention matters."""
    made = transformers.AutoModelForCausalLM.from_config(CONFIGS[kind]())
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, generator=noise) * 0.25)
    return made.eval()


@remembered
def model(kind: str) -> HFModel:
    return HFModel.wrap(net(kind), kind)


def new_cache(kind: str, slots: int = 1) -> DenseCache:
    cache = DenseCache(model(kind).cache_specs, slots=slots, capacity=64)
    for slot in range(slots):
        cache.admit(slot, [])
    return cache


def tokens(ids: Sequence[int], parents: Sequence[int] | None = None, *, slot: int = 0, done: int = 0) -> ForwardInput:
    parents = list(range(-1, len(ids) - 1)) if parents is None else list(parents)
    depth: list[int] = []
    for parent in parents:
        depth.append(0 if parent < 0 else depth[parent] + 1)
    rows = torch.arange(len(ids))
    positions = done + torch.tensor(depth)
    return ForwardInput(
        torch.tensor(ids), torch.full_like(rows, slot), positions, rows, torch.tensor(parents), want=rows
    )


def join(*parts: ForwardInput) -> ForwardInput:
    columns: dict[str, Any] = {
        f: torch.cat([getattr(p, f) for p in parts]) for f in ("ids", "slots", "positions", "entries", "parents")
    }
    return ForwardInput(**columns, want=torch.arange(len(columns["ids"])))


def path(node: int) -> list[int]:
    return [] if node < 0 else [*path(PARENTS[node]), TREE[node]]


def plain(kind: str, ids: Sequence[int]) -> Tensor:
    """What transformers says of a text, with nothing of ours."""
    with torch.inference_mode():
        return net(kind)(torch.tensor([list(ids)]), use_cache=False).logits[0]


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, atol=2e-5 * float(b.abs().max()), rtol=0)


# --- whole texts


@pytest.fixture
def folder(write_folder: Callable[..., Path]) -> Callable[[str], Path]:
    """A model saved by transformers, with a tokenizer beside it."""

    def write(kind: str) -> Path:
        where = write_folder()
        net(kind).save_pretrained(where)
        return where

    return write


def generated(kind: str, prompt: list[int], new: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = net(kind).generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new, eos_token_id=257, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("kind", CONFIGS)
def test_greedy_text_is_what_transformers_generates(kind, folder):
    prompts = ["hello world, hello world, hello", "a", "the cat and the hat and the bat and the"]
    with LLM(
        f"hf:{folder(kind)}", recipe="prompt_lookup", config=EngineConfig(max_num_seqs=2, max_prefill_tokens=8)
    ) as llm:
        results = llm.generate(prompts, max_tokens=40, temperature=0.0)
        for prompt, result in zip(prompts, results, strict=True):
            assert list(result.token_ids) == generated(kind, llm.tokenizer.encode(prompt, special=True), 40)
        again = llm.generate(prompts[2] + " rat", max_tokens=5, temperature=0.0)  # from rows that are still there
        assert list(again.token_ids) == generated(kind, llm.tokenizer.encode(prompts[2] + " rat", special=True), 5)
    assert sum(r.stats.target_passes for r in results) < sum(len(r.token_ids) for r in results)  # drafts were accepted


def test_plain_decoding_writes_the_same(folder):
    with LLM(f"hf:{folder('gpt2')}", recipe="autoregressive") as llm:
        result = llm.generate("hello", max_tokens=12, temperature=0.0)
        assert list(result.token_ids) == generated("gpt2", llm.tokenizer.encode("hello", special=True), 12)
        assert result.lossless


# --- passes


@pytest.mark.parametrize("kind", CONFIGS)
def test_tree_is_followed_in_a_ragged_batch_and_forgotten_after_a_commit(kind):
    cache = new_cache(kind, slots=3)
    model(kind).forward(join(tokens(TEXT, slot=1), tokens(TEXT[:2], slot=0)), cache)
    cache.commit([0, 1], [[0, 1], list(range(len(TEXT)))])
    chain = [8, 9, 10, 11, 12]
    x = join(
        tokens(TREE, PARENTS, slot=1, done=len(TEXT)),
        tokens([1, 2], slot=-1),
        tokens([4], slot=0, done=2),
        tokens(chain, slot=2),
    )
    said = model(kind).forward(x, cache).logits
    for i in range(len(TREE)):
        assert close(said[i], plain(kind, TEXT + path(i))[-1]), i
    assert close(said[-6], plain(kind, [*TEXT[:2], 4])[-1])
    assert close(said[-5:], plain(kind, chain))
    cache.commit([1], [[0, 2, 4, 6]])
    text = TEXT + path(6)
    assert close(model(kind).forward(tokens([77], slot=1, done=len(text)), cache).logits, plain(kind, [*text, 77])[-1:])


@pytest.mark.parametrize("kind", SOME)
def test_node_that_sees_a_sibling_is_noticed(kind):
    right = tokens(TREE, PARENTS)
    wrong = replace(right, parents=torch.tensor([-1, 0, 1, 1, 2, 2, 4]))
    said = model(kind).forward(wrong, new_cache(kind)).logits
    off = [not close(said[i], plain(kind, path(i))[-1]) for i in range(len(TREE))]
    assert off == [False, False, True, False, True, True, True]


@pytest.mark.parametrize("kind", SOME)
def test_tree_run_level_by_level_says_the_same(kind):
    cache = new_cache(kind)
    whole = tokens(TREE, PARENTS)
    for part in (slice(0, 1), slice(1, 3), slice(3, 6), slice(6, 7)):
        columns = {f: getattr(whole, f)[part] for f in ("ids", "slots", "positions", "entries", "parents")}
        said = model(kind).forward(ForwardInput(**columns, want=torch.arange(len(columns["ids"]))), cache).logits
        for i, logits in zip(range(len(TREE))[part], said, strict=True):
            assert close(logits, plain(kind, path(i))[-1])


def test_logits_are_made_only_where_they_are_wanted():
    x = join(tokens(TEXT, slot=0), tokens(TEXT[::-1], slot=1), tokens([5], slot=2))
    whole = model("llama").forward(x, new_cache("llama", 3))
    want = torch.tensor([22, 10, 13])
    seen = model("llama").forward(replace(x, want=want), new_cache("llama", 3))
    assert close(seen.logits, whole.logits[want])
    assert seen.logits_index[want].tolist() == [0, 1, 2]
    assert int((seen.logits_index >= 0).sum()) == 3
    none = model("llama").forward(replace(x, want=want[:0]), new_cache("llama", 3))
    assert none.logits.shape == (0, 264)
    assert close(none.hidden, whole.hidden)


@pytest.mark.parametrize("kind", CONFIGS)
def test_taps_are_the_hidden_states_of_transformers(kind):
    with torch.inference_mode():
        out = net(kind)(torch.tensor([TEXT]), output_hidden_states=True, use_cache=False)
    states = [h[0] for h in out.hidden_states]
    assert len(states) == 4
    seen = model(kind).forward(tokens(TEXT), new_cache(kind), taps=frozenset({0, 1, 2, 3, FINAL}))
    for tap, state in {0: states[0], 1: states[1], 2: states[2], FINAL: states[3]}.items():
        assert close(seen.features[tap], state), tap
    norm = model(kind).norm
    assert norm is not None
    assert close(norm(seen.features[3]), states[3])
    assert not close(seen.features[3], states[3])  # transformers' last state is already normed
    assert torch.equal(seen.hidden, seen.features[3])
    assert model(kind).forward(tokens(TEXT), new_cache(kind)).features == {}


@pytest.mark.parametrize("kind", CONFIGS)
def test_head_gives_single_rows(kind):
    seen = model(kind).forward(tokens(TEXT), new_cache(kind), taps=frozenset({FINAL}))
    ids = torch.tensor([263, 0, 13])
    assert close(model(kind).head(seen.hidden), seen.logits)
    assert close(model(kind).head(seen.hidden, ids=ids), seen.logits[:, ids])
    assert close(model(kind).head(seen.features[FINAL], ids=ids, norm=False), seen.logits[:, ids])
    assert not close(model(kind).head(seen.hidden, norm=False), seen.logits)


@pytest.mark.parametrize("kind", SOME)
def test_handed_in_embeddings_stand_for_ids(kind):
    x = tokens(TEXT)
    blind = replace(x, ids=torch.zeros_like(x.ids), hidden=model(kind).embed(x.ids))
    assert close(model(kind).forward(blind, new_cache(kind)).logits, plain(kind, TEXT))


# --- loading


def loaded(where: Path) -> Loaded:
    return load(f"hf:{where}")


def test_known_family_keeps_its_config_and_fingerprint(folder):
    where = folder("llama")
    here, there = load(str(where)), loaded(where)
    assert isinstance(there.config, ModelConfig)
    assert there.config == here.config
    assert there.fingerprint == here.fingerprint  # heads trained on one fit the other


def test_other_families_say_what_an_engine_must_know(folder):
    there = loaded(folder("gpt2"))
    assert isinstance(there.config, HFConfig)
    assert there.config == HFConfig("gpt2", 264, 32, 3, 128, bos_token_id=256, eos_token_ids=(257,))
    assert there.name.startswith("hf:")
    assert there.model.dtype == torch.float32


def test_fingerprint_tells_weights_apart(folder):
    where = folder("gpt2")
    first, again = loaded(where).fingerprint, loaded(where).fingerprint
    weights = load_file(where / "model.safetensors")
    weights["transformer.wte.weight"][-1, 0] += 1
    save_file(weights, where / "model.safetensors", metadata={"format": "pt"})
    assert first == again != loaded(where).fingerprint


def test_dtype_is_what_was_asked_for(folder):
    there = load(f"hf:{folder('gpt2')}", dtype=torch.float64)
    assert there.model.dtype == torch.float64
    assert {spec.dtype for spec in there.model.cache_specs} == {torch.float64}


def test_missing_tensor_is_never_filled_with_noise(folder):
    where = folder("gpt2")
    weights = load_file(where / "model.safetensors")
    del weights["transformer.h.1.ln_1.weight"]
    save_file(weights, where / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsError, match=r"transformer\.h\.1\.ln_1\.weight"):
        loaded(where)


def test_code_that_a_model_brings_along_is_never_run(folder, tmp_path):
    where = folder("gpt2")
    config = json.loads((where / "config.json").read_text())
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"}
    (where / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": classes}))
    (where / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    with pytest.raises(ModelError, match=r"(?s)transformers cannot load it.*hint: .*never run"):
        loaded(where)
    assert not (tmp_path / "ran").exists()


def test_folder_without_tokenizer_is_refused(folder):
    where = folder("gpt2")
    (where / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        loaded(where)


def test_recurrent_model_is_refused_at_the_door(write_folder):
    shape: dict[str, Any] = {
        "vocab_size": 264,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "eos_token_id": 257,
        "pad_token_id": 0,
    }
    where = write_folder()
    transformers.MambaForCausalLM(transformers.MambaConfig(**shape)).save_pretrained(where)
    with pytest.raises(ModelError, match="does not honour tree masks"):
        loaded(where)


def test_unknown_names_are_refused_with_a_hint():
    with pytest.raises(UnknownNameError, match="hint: "):
        load("hf:./no/such/folder")


def test_name_that_cannot_be_fetched_says_so(monkeypatch):
    import huggingface_hub

    def offline(*args: Any, **kwargs: Any) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(DownloadError, match=r"(?s)'org/name' could not be fetched: .*hint: "):
        load("hf:org/name")


def test_without_transformers_the_hint_says_what_to_install(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("draftwood.models.hf")]:
        monkeypatch.delitem(sys.modules, name)
    import draftwood.models

    monkeypatch.delattr(draftwood.models, "hf", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "transformers.cache_utils", None)
    with pytest.raises(ModelError, match=r"hint: pip install draftwood\[hf\]"):
        load("hf:org/name")

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftwood.core.config import ModelConfig
from draftwood.errors import ModelError, OptionError, TokenizerError, UnknownNameError, WeightsError
from draftwood.models.backends.choose import precision
from draftwood.models.loading.load import check_device, fingerprint, load, load_tokenizer, load_weights, loaded_on

SECOND_START = """
import sys
from draftwood.models.loading.load import load_weights
config, tensors, tokenizer = load_weights("smollm2")
assert tokenizer.encode("Hello") and len(tensors) == 272
heavy = {"transformers", "gguf", "huggingface_hub"} & set(sys.modules)
assert not heavy, heavy
"""

FIRST_START = """
import sys
from draftwood.models.loading.load import load_weights, fingerprint
config, tensors, _ = load_weights(sys.argv[1])
print(fingerprint(config, tensors))
"""


def test_a_folder_is_loaded_whole(write_folder, tiny: ModelConfig, weights):
    loaded = load(str(write_folder()))
    assert loaded.config == tiny
    assert loaded.tokenizer.encode("hello") == [261]
    assert loaded.name.endswith("folder") and len(loaded.fingerprint) == 16


@pytest.mark.parametrize(("dtype", "ties"), [("auto", False), ("int8", False), ("float32", True), ("float64", False)])
def test_rounding_may_part_texts_only_where_rows_are_not_exact(write_folder, dtype: str, ties: bool):
    assert load(str(write_folder()), dtype=dtype).info.near_ties == ties


def test_the_embedded_model_is_what_it_says(smollm2):
    config, tensors, tokenizer = smollm2
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert (config.rope_theta, config.rms_eps, config.max_positions) == (100_000.0, 1e-5, 8192)
    assert config.tie_embeddings and config.eos_token_ids == (2,) and tokenizer.vocab_size == config.vocab_size
    assert sum(tensor.numel() for tensor in tensors.values()) == 134_515_008


def test_a_file_and_its_copy_are_the_same_model(write_gguf, write_folder, cache: Path):
    from_file = load_weights(str(write_gguf()))
    from_folder = load_weights(str(write_folder()))
    assert from_file[0] == from_folder[0]
    assert fingerprint(*from_file[:2]) == fingerprint(*from_folder[:2])
    assert all(torch.equal(tensor, from_folder[1][name]) for name, tensor in from_file[1].items())


def test_a_fingerprint_tells_models_apart(tiny: ModelConfig, weights, make_weights):
    same = fingerprint(tiny, weights)
    assert fingerprint(replace(tiny, eos_token_ids=(1, 2), max_positions=9), weights) == same
    assert fingerprint(tiny, {name: tensor.double() for name, tensor in weights.items()}) == same
    assert fingerprint(replace(tiny, rope_theta=5.0), weights) != same
    assert fingerprint(tiny, make_weights(seed=1)) != same
    nudged = weights | {"model.norm.weight": weights["model.norm.weight"] + 1e-3}
    assert fingerprint(tiny, nudged) != same


def test_end_tokens_of_config_and_tokenizer_both_count(write_folder):
    folder = write_folder({"eos_token_id": 256})
    assert load_weights(str(folder))[0].eos_token_ids == (256, 257)


@pytest.mark.slow
def test_the_second_start_imports_nothing_heavy(smollm2, child_env):
    assert subprocess.run([sys.executable, "-c", SECOND_START], env=child_env(), check=False).returncode == 0


@pytest.mark.long
def test_two_first_starts_at_once_agree(cache: Path, write_gguf, child_env):
    run = [sys.executable, "-c", FIRST_START, str(write_gguf())]
    both = [subprocess.Popen(run, env=child_env(), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    marks = [process.communicate(timeout=60)[0] for process in both]
    assert marks[0] == marks[1] and len(marks[0]) == 17
    assert sorted(path.suffix for path in (cache / "models").iterdir()) == ["", ".lock"]


def test_names_with_hf_go_to_transformers(monkeypatch: pytest.MonkeyPatch):
    import draftwood.models.hf

    called = []
    fake = SimpleNamespace(load=lambda *arguments: called.append(arguments) or "loaded")
    monkeypatch.setattr(draftwood.models.hf, "model", fake, raising=False)
    monkeypatch.setitem(sys.modules, "draftwood.models.hf.model", fake)
    assert load("hf:org/name", dtype=torch.float64) == "loaded"
    assert called == [("org/name", torch.float64, torch.device("cpu"))]


def truncate(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 5000)


def other_config(folder: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"vocab_size": 200}))


def other_family(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt_neox"}))


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def larger_tokenizer(folder: Path) -> None:
    raw = json.loads((folder / "tokenizer.json").read_text())
    extra = raw["added_tokens"][0] | {"id": 264, "content": "<|one too many|>"}
    (folder / "tokenizer.json").write_text(json.dumps(raw | {"added_tokens": [*raw["added_tokens"], extra]}))


def forgetful_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ bos_token }}")


def undefined_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\xff" * 4)


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (truncate, WeightsError, "model.safetensors: not a whole safetensors file"),
        (other_config, WeightsError, "model.embed_tokens.weight is"),
        (other_family, ModelError, "model type 'gpt_neox'.*hint: load it as hf:"),
        (no_tokenizer, TokenizerError, "no tokenizer.json"),
        (larger_tokenizer, TokenizerError, "'<|one too many|>' has id 264"),
        (forgetful_template, TokenizerError, "loses the user message"),
        (undefined_weights, WeightsError, "holds infinite or undefined"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_before_any_token(write_folder, damage, kind, message: str):
    folder = write_folder()
    load_weights(str(folder))
    damage(folder)
    with pytest.raises(kind, match=f"(?s){message.replace('|', '.')}"):
        load_weights(str(folder))


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_undefined_weights_are_named_in_every_precision(write_folder, weights, dtype: str):
    weights["model.layers.1.mlp.up_proj.weight"][3, 4] = torch.nan
    with pytest.raises(WeightsError, match=r"tensor 'model.layers.1.mlp.up_proj.weight' holds .*NaN"):
        load(str(write_folder(tensors=weights)), dtype=dtype)


def test_a_file_with_undefined_weights_names_them(write_gguf, to_gguf, tiny: ModelConfig, weights, cache: Path):
    weights["model.layers.1.mlp.up_proj.weight"][3, 4] = torch.nan
    with pytest.raises(WeightsError, match=r"tensor 'blk.1.ffn_up.weight' .*NaN"):
        load(str(write_gguf(tensors=to_gguf(tiny, weights))))


def test_a_model_of_the_hub_that_has_no_decoder_here_points_to_hf(write_folder, monkeypatch: pytest.MonkeyPatch):
    folder = write_folder({"model_type": "gpt_neox"})
    monkeypatch.setattr("draftwood.models.loading.resolve._downloaded", lambda name: folder)
    with pytest.raises(ModelError, match=r"(?s)'gpt_neox' has no decoder here.*hint: load it as hf:org/name,"):
        load("org/name")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda")])
@pytest.mark.parametrize("name", ["folder", "hf:folder", "nobody"])
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_read(name: str, device):
    with pytest.raises(OptionError, match=r"device cuda.* cannot be used: .+\nhint: .*CPU"):
        load(name, device=device)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "", 3.5])
def test_a_device_that_torch_does_not_know_is_refused(device):
    with pytest.raises(OptionError, match=r"device cannot be .*\nhint: cpu, cuda, cuda:N or auto"):
        load("smollm2", device=device)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which torch finds a GPU and can put tensors there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", lambda *size, device: None)


def test_auto_is_the_cpu_where_torch_finds_no_gpu(write_folder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert check_device("auto") == torch.device("cpu")
    assert load(str(write_folder())).info.device == torch.device("cpu")


def test_auto_is_the_gpu_where_torch_finds_one(gpu):
    assert check_device("auto") == check_device("auto", "float32") == torch.device("cuda")
    assert precision("auto", check_device("auto")) == torch.bfloat16
    assert check_device("cpu") == torch.device("cpu"), "an explicit device is taken"


def test_int8_by_name_is_the_cpu_even_beside_a_gpu(write_folder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    loaded = load(str(write_folder()), dtype="int8")
    assert loaded.info.device == torch.device("cpu") and loaded.info.batch_invariant
    with pytest.raises(
        OptionError, match="the int8 backend runs on a CPU, not on meta\nhint: leave out dtype or device"
    ):
        load("nobody", dtype="int8", device="meta")


def test_four_bits_are_for_folders_on_a_cpu(write_folder, write_gguf, cache: Path):
    folder = write_folder()
    eight, four = (load(str(folder), dtype=dtype).model.weights for dtype in ("int8", "q4"))
    kinds = [
        {name: product.parts[0].kind.name for name, product in w.layers[1].products.items()} for w in (eight, four)
    ]
    assert set(kinds[0].values()) == {"Q8_0"} and set(kinds[1].values()) == {"Q4_1"}
    assert four.embedding.kind.name == "Q8_0" and four.bytes_per_pass < eight.bytes_per_pass
    with pytest.raises(OptionError, match=r"is a GGUF file, whose weights keep their own types\nhint: leave out dtype"):
        load(str(write_gguf()), dtype="q4")
    with pytest.raises(OptionError, match="the q4 backend runs on a CPU, not on meta"):
        load("nobody", dtype="q4", device="meta")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_torch_finds_and_cannot_use_is_not_passed_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(OptionError, match=r"device cuda cannot be used: .+\nhint: "):
        load("nobody")


def test_a_loaded_model_stays_where_it_is(write_folder):
    loaded = load(str(write_folder()), device="cpu")
    for device in ("auto", "cpu", torch.device("cpu")):
        assert loaded_on(loaded, device=device) is loaded
    with pytest.raises(OptionError, match=r"is loaded on cpu, not on meta\nhint: leave out device"):
        loaded_on(loaded, device="meta")


@pytest.mark.parametrize(
    ("device", "same"), [("auto", True), ("cuda", True), ("cuda:1", True), ("cuda:0", False), ("cpu", False)]
)
def test_gpus_are_told_apart_by_their_number_where_it_is_given(gpu, device: str, same: bool):
    here: Any = SimpleNamespace(name="tiny", info=SimpleNamespace(device=torch.device("cuda:1")))
    if same:
        assert loaded_on(here, device=device) is here
    else:
        with pytest.raises(OptionError, match=f"tiny is loaded on cuda:1, not on {device}"):
            loaded_on(here, device=device)


def test_a_tokenizer_is_read_without_the_weights(write_folder):
    folder = write_folder()
    known = load(str(folder), dtype="float32").tokenizer.fingerprint
    (folder / "model.safetensors").unlink()
    assert load_tokenizer(str(folder)).fingerprint == load_tokenizer(f"hf:{folder}").fingerprint == known


@pytest.mark.parametrize("name", ["nobody", "./nowhere", ""])
def test_an_unknown_name_is_refused(name: str):
    with pytest.raises(UnknownNameError):
        load(name)

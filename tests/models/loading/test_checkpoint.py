import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftwood.core.config import ModelConfig
from draftwood.errors import ModelError, WeightsError
from draftwood.models.loading.checkpoint import INDEX, Checkpoint, check_finite, read_config


def test_a_folder_is_read_as_it_was_written(write_folder, tiny: ModelConfig, weights):
    folder = write_folder()
    assert read_config(folder) == tiny
    found = Checkpoint.open(folder, tiny)
    assert len(found) == len(weights)
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("shards", [False, True])
def test_what_transformers_saves_is_read(tmp_path: Path, family: str, shards: bool):
    import transformers

    shape = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 50}
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(family, num_hidden_layers=2, intermediate_size=48, **shape)
    )
    theirs.save_pretrained(tmp_path, max_shard_size="20KB" if shards else "1GB")
    assert (tmp_path / INDEX).is_file() == shards
    found = Checkpoint.open(tmp_path, read_config(tmp_path))
    state = theirs.state_dict()
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


def test_weights_are_mapped_not_read(write_folder, tiny: ModelConfig, weights):
    big = weights | {"model.embed_tokens.weight": torch.zeros(1 << 20, 32)}  # 128 MiB
    config = replace(tiny, vocab_size=1 << 20)
    folder = write_folder({"vocab_size": 1 << 20}, big)
    before = _resident()
    held = Checkpoint.open(folder, config)["model.embed_tokens.weight"]
    assert held.shape == (1 << 20, 32)
    assert _resident() - before < 64 << 20


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_tied_head_that_was_saved_must_equal_the_embedding(write_folder, tiny: ModelConfig, weights):
    tied = weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}
    assert "lm_head.weight" not in Checkpoint.open(write_folder(tensors=tied), tiny)
    tied["lm_head.weight"][-1, -1] += 1
    with pytest.raises(WeightsError, match=r"(?s)lm_head.weight differs from .*hint: set tie_word_embeddings"):
        Checkpoint.open(write_folder(tensors=tied), tiny)


def test_buffers_of_old_checkpoints_are_ignored(write_folder, tiny: ModelConfig, weights):
    old = weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    assert len(Checkpoint.open(write_folder(tensors=old), tiny)) == len(weights)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file_is_named(write_folder, tiny: ModelConfig, keep: int):
    path = write_folder() / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(WeightsError, match=r"(?s)model.safetensors: not a whole safetensors file.*hint: the file is"):
        Checkpoint.open(path.parent, tiny)


def test_a_pointer_in_place_of_the_weights_is_explained(write_folder, tiny: ModelConfig):
    path = write_folder() / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(WeightsError, match="git lfs pull"):
        Checkpoint.open(path.parent, tiny)


def test_weights_of_another_type_are_refused(write_folder, tiny: ModelConfig, weights):
    odd = weights | {"model.norm.weight": torch.zeros(32, dtype=torch.int8)}
    with pytest.raises(WeightsError, match=r"'model.norm.weight' has type I8"):
        Checkpoint.open(write_folder(tensors=odd), tiny)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_undefined_weights_are_named(write_folder, tiny: ModelConfig, weights, value, dtype):
    folder = write_folder(tensors={name: tensor.to(dtype) for name, tensor in weights.items()})
    check_finite(Checkpoint.open(folder, tiny).items(), "here")
    weights["model.norm.weight"][3] = value
    folder = write_folder(tensors={name: tensor.to(dtype) for name, tensor in weights.items()})
    with pytest.raises(WeightsError, match=r"'model.norm.weight' holds infinite or undefined"):
        check_finite(Checkpoint.open(folder, tiny).items(), "here")


def test_large_weights_whose_sum_overflows_are_no_error():
    check_finite([("large", torch.full((4,), 3e38))], "here")


def test_pickles_are_never_opened(write_folder, tiny: ModelConfig):
    folder = write_folder()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(WeightsError, match=r"(?s)no safetensors, only pytorch_model.bin.*hint: .*never read"):
        Checkpoint.open(folder, tiny)


def test_a_folder_without_weights_says_so(write_folder, tiny: ModelConfig):
    folder = write_folder()
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="no weights"):
        Checkpoint.open(folder, tiny)


def shard(folder: Path, weights: dict[str, torch.Tensor]) -> dict[str, str]:
    """The weights in two files; returns the index's map."""
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    places = {name: f"model-{1 + (i >= 5)}.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: weights[name] for name in names if places[name] == file}, folder / file)
    return places


def write_index(folder: Path, places: object) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))


def test_shards_are_read_through_their_index(write_folder, tiny: ModelConfig, weights):
    folder = write_folder()
    places = shard(folder, weights)
    with pytest.raises(WeightsError, match=r"2 safetensors files and no model.safetensors.index.json"):
        Checkpoint.open(folder, tiny)
    write_index(folder, places)
    found = Checkpoint.open(folder, tiny)
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())


def test_a_missing_shard_is_named(write_folder, tiny: ModelConfig, weights):
    folder = write_folder()
    write_index(folder, shard(folder, weights))
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"1 of 2 weight files are missing: model-2.safetensors"):
        Checkpoint.open(folder, tiny)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": "../secret.safetensors"}, "which is not a file name"),
        ({"model.norm.weight": 3}, "which is not a file name"),
        ({"model.norm.weight": "model-1.safetensors"}, "model-1.safetensors: lacks model.norm.weight"),
    ],
)
def test_an_index_that_lies_is_refused(write_folder, tiny: ModelConfig, weights, change, message):
    folder = write_folder()
    write_index(folder, shard(folder, weights) | change)
    with pytest.raises(WeightsError, match=message):
        Checkpoint.open(folder, tiny)


def test_a_tensor_in_two_files_is_refused(write_folder, tiny: ModelConfig, weights):
    folder = write_folder()
    places = shard(folder, weights)
    save_file(weights, folder / "model-2.safetensors")
    write_index(folder, places)
    with pytest.raises(WeightsError, match="is in two files"):
        Checkpoint.open(folder, tiny)


def test_weights_of_another_model_are_refused(write_folder, tiny: ModelConfig):
    with pytest.raises(WeightsError, match=r"(?s)too few|missing: model.layers.2"):
        Checkpoint.open(write_folder(), replace(tiny, num_layers=3))


def test_a_folder_without_config_says_what_belongs_there(tmp_path: Path):
    with pytest.raises(ModelError, match=r"(?s)no config.json.*hint: a model folder holds"):
        read_config(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_broken_config_is_named(tmp_path: Path, text: str):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=r"config.json: (cannot be read as JSON|should hold a JSON object)"):
        read_config(tmp_path)


def test_end_tokens_come_from_both_files(write_folder):
    folder = write_folder()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, 257]}))
    assert read_config(folder).eos_token_ids == (257, 256)

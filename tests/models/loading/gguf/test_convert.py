import errno
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from draftwood.core.config import ModelConfig
from draftwood.errors import ModelError, TokenizerError, WeightsError
from draftwood.models.loading import folder_cache
from draftwood.models.loading.checkpoint import Checkpoint, read_config
from draftwood.models.loading.gguf import convert
from draftwood.models.loading.tokenizer import Tokenizer

SHAPES = {"a": (3, 5), "b": (7,), "c": (2, 2, 2)}


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that is converted, in order."""
    seen: list[Path] = []
    real = convert.convert
    monkeypatch.setattr(convert, "convert", lambda path, folder: seen.append(path) or real(path, folder))
    return seen


def trust_time_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a file older than the file system's clock can blur."""
    monkeypatch.setattr(convert, "SETTLED_NS", -1)


def folders(cache: Path) -> list[Path]:
    return [path for path in (cache / "models").iterdir() if path.is_dir()]


def test_the_copy_holds_what_the_file_holds(cache: Path, write_gguf, tiny: ModelConfig, weights):
    folder = convert.converted(write_gguf())
    assert read_config(folder) == tiny
    found = Checkpoint.open(folder, tiny)
    assert found.keys() == weights.keys()
    assert all(found[name].equal(tensor) for name, tensor in weights.items())
    assert Tokenizer.from_folder(folder).encode("hello<|end|>") == [261, 257]


def test_transformers_reads_the_copy_too(cache: Path, write_gguf, weights):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = convert.converted(write_gguf())
    state = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert all(state[name].equal(tensor) for name, tensor in weights.items())
    theirs = AutoTokenizer.from_pretrained(folder)
    talk = [{"role": "user", "content": "hello wo"}]
    ours = Tokenizer.from_folder(folder)
    assert theirs.apply_chat_template(talk, add_generation_prompt=True)["input_ids"] == ours.encode_chat(talk)


def test_a_file_is_converted_once_wherever_it_lies(cache: Path, write_gguf, tmp_path: Path, count):
    first = write_gguf()
    second = Path(shutil.copy(first, tmp_path / "copy.gguf"))
    assert convert.converted(first) == convert.converted(first) == convert.converted(second)
    assert count == [first]


def test_a_changed_file_is_noticed(cache: Path, write_gguf, count, monkeypatch: pytest.MonkeyPatch):
    path = write_gguf()
    trust_time_stamps(monkeypatch)
    before = convert.converted(path)
    stamp = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # the last weight, in its exponent or sign
    time.sleep(0.02)
    path.write_bytes(data)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # same size, same time: only ctime tells
    assert path.stat().st_mtime_ns == stamp.st_mtime_ns and path.stat().st_size == stamp.st_size
    assert convert.converted(path) != before
    assert len(count) == 2


def test_an_unchanged_file_is_not_hashed_again(cache: Path, write_gguf, monkeypatch: pytest.MonkeyPatch):
    path = write_gguf()
    trust_time_stamps(monkeypatch)
    convert.converted(path)
    hashed: list[Path] = []
    real = folder_cache.sha256
    monkeypatch.setattr(folder_cache, "sha256", lambda file: hashed.append(file) or real(file))
    convert.converted(path)
    assert path not in hashed and hashed  # the copy was checked


def test_a_file_still_warm_is_hashed_every_time(cache: Path, write_gguf):
    convert.converted(write_gguf())
    assert not list(cache.glob("seen/*"))


def test_a_broken_note_is_no_problem(cache: Path, write_gguf, monkeypatch: pytest.MonkeyPatch):
    path = write_gguf()
    trust_time_stamps(monkeypatch)
    folder = convert.converted(path)
    (note,) = cache.glob("seen/*")
    for text in ("", "[]", '{"seen": 3}'):
        note.write_text(text)
        assert convert.converted(path) == folder


def test_a_damaged_copy_is_made_again(cache: Path, write_gguf, tiny: ModelConfig, weights, count):
    path = write_gguf()
    file = convert.converted(path) / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    found = Checkpoint.open(convert.converted(path), tiny)
    assert all(found[name].equal(tensor) for name, tensor in weights.items())
    assert len(count) == 2


def test_a_full_disk_leaves_nothing(cache: Path, write_gguf, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, *_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(convert, "write_float32", full)
    with pytest.raises(ModelError, match=r"(?s)no space left.*hint: .*DRAFTWOOD_CACHE"):
        convert.converted(write_gguf())
    assert folders(cache) == []


@pytest.mark.parametrize(
    ("keys", "kind", "message"),
    [
        ({"general.architecture": "mamba"}, ModelError, "architecture 'mamba'"),
        ({"llama.block_count": 3}, WeightsError, "missing: model.layers.2.input_layernorm.weight"),
        ({"llama.vocab_size": 300}, WeightsError, r"model.embed_tokens.weight is \(264, 32\), expected \(300, 32\)"),
        ({"tokenizer.ggml.pre": "unheard"}, TokenizerError, "pre 'unheard'"),
        ({"tokenizer.chat_template": "{{ messages[0].role }}"}, TokenizerError, "loses the user message"),
        ({"tokenizer.chat_template": "{% for %}"}, TokenizerError, "TemplateSyntaxError"),
        ({"tokenizer.ggml.eot_token_id": 263_000}, TokenizerError, "eos_token_id 263000"),
    ],
)
def test_a_file_that_does_not_fit_together_leaves_nothing(cache: Path, write_gguf, keys, kind, message):
    with pytest.raises(kind, match=message):
        convert.converted(write_gguf(**keys))
    assert folders(cache) == []


def test_a_truncated_file_leaves_nothing(cache: Path, write_gguf):
    path = write_gguf()
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match=r"model.gguf: tensor .* ends at byte"):
        convert.converted(path)
    assert folders(cache) == []


def arrays() -> dict[str, np.ndarray]:
    return {name: np.random.default_rng(0).normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def test_the_safetensors_library_reads_what_arrives_in_any_order(tmp_path: Path):
    wanted = arrays()
    convert.write_float32(tmp_path / "x", SHAPES, reversed(list(wanted.items())))
    found = load_file(tmp_path / "x")
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], array) for name, array in wanted.items())


def test_data_begins_on_a_cache_line(tmp_path: Path):
    convert.write_float32(tmp_path / "x", SHAPES, arrays().items())
    assert (8 + int.from_bytes((tmp_path / "x").read_bytes()[:8], "little")) % 64 == 0


def test_a_tensor_that_never_came_is_our_own_mistake(tmp_path: Path):
    with pytest.raises(AssertionError, match="never arrived"):
        convert.write_float32(tmp_path / "x", SHAPES, list(arrays().items())[:2])

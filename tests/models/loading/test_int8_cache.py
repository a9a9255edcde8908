"""Weights are packed once; later starts read the copy and never open the floats."""

import os
import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import quants

from draftwood.core.config import ModelConfig
from draftwood.core.model_info import ModelInfo
from draftwood.errors import WeightsError
from draftwood.models.backends.int8_weights import Int8Weights
from draftwood.models.backends.packed_file import DATA
from draftwood.models.loading import int8_cache, load
from draftwood.models.loading.checkpoint import Checkpoint

VERSION = int8_cache.VERSION


class Kept:
    """A model that never runs and keeps its weights."""

    def __init__(self, config: ModelConfig, weights: Int8Weights) -> None:
        self.weights = weights
        self.info = ModelInfo(
            vocab_size=config.vocab_size,
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            max_positions=config.max_positions,
        )


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own that keeps even tiny models. What runs the weights is of no interest here."""
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(int8_cache, "WORTH_KEEPING", 0)
    monkeypatch.setattr(load, "int8_decoder", Kept)
    return tmp_path / "cache" / "models"


@pytest.fixture
def floats_closed(monkeypatch: pytest.MonkeyPatch):
    def close() -> None:
        def refuse(*arguments: Any) -> Any:
            raise AssertionError("the float weights were opened")

        monkeypatch.setattr(Checkpoint, "open", refuse)

    return close


def loaded(name: Path) -> tuple[Int8Weights, str]:
    found = load.load(str(name))
    assert isinstance(found.model, Kept)
    return found.model.weights, found.fingerprint


def same(a: Int8Weights, b: Int8Weights) -> bool:
    pairs = zip(a.layers, b.layers, strict=True)
    return torch.equal(a.embedding.data, b.embedding.data) and all(
        torch.equal(part.data, other.data)
        for x, y in pairs
        for name, product in x.products.items()
        for part, other in zip(product.parts, y.products[name].parts, strict=True)
    )


def folders(copies: Path) -> list[Path]:
    return sorted(path for path in copies.glob("packed*") if path.is_dir())


def test_second_start_reads_the_copy_alone(write_folder, copies, floats_closed):
    folder = write_folder()
    first, mark = loaded(folder)
    assert len(folders(copies)) == 1
    floats_closed()
    path = folder / "model.safetensors"
    found = path.stat()
    path.write_bytes(b"\0" * found.st_size)  # nobody may notice
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    second, again = loaded(folder)
    assert same(first, second) and mark == again


def test_copy_of_a_converted_file_is_found_by_its_name(write_gguf, copies, floats_closed):
    path = write_gguf()
    first, mark = loaded(path)
    (copy,) = folders(copies)
    converted = [p for p in copies.iterdir() if p.is_dir() and p != copy]
    assert [f"packed{int8_cache.VERSION}-{p.name}" for p in converted] == [copy.name]
    floats_closed()
    second, again = loaded(path)
    assert same(first, second) and mark == again


def kinds(name: Path, dtype: str) -> set[str]:
    return {kind.name for kind in load.load(str(name), dtype=dtype).model.weights.kinds}


def test_floats_of_a_file_have_a_copy_of_their_own_and_one_in_eight_bits_where_asked_for(write_gguf, copies):
    path = write_gguf()
    for _ in range(2):  # the second time from the copies
        assert kinds(path, "auto") == {"F32"} and kinds(path, "int8") == {"Q8_0"}
    assert len(folders(copies)) == 2
    shutil.rmtree(folders(copies)[0])
    assert folders(copies)[0].name.endswith("-int8") and kinds(path, "auto") == {"F32"}


@pytest.mark.parametrize("first", ["auto", "int8"])
def test_file_without_floats_has_one_copy(tiny, write_gguf, to_gguf, make_weights, copies, first: str):
    stored = to_gguf(tiny, make_weights(tiny))
    raw = {
        name: (quants.quantize(x, gguf.GGMLQuantizationType.Q8_0), "Q8_0") for name, x in stored.items() if x.ndim == 2
    }
    path = write_gguf(tiny, {name: x for name, x in stored.items() if name not in raw}, raw)
    for dtype in (first, "auto", "int8"):
        assert kinds(path, dtype) == {"Q8_0"}
    assert len(folders(copies)) == 1


def test_weights_of_a_folder_are_in_eight_bits_either_way(write_folder, copies):
    folder = write_folder()
    assert kinds(folder, "auto") == kinds(folder, "int8") == {"Q8_0"}
    assert len(folders(copies)) == 1


def test_small_model_leaves_no_copy(write_folder, copies, monkeypatch):
    monkeypatch.setattr(int8_cache, "WORTH_KEEPING", 64 << 20)
    loaded(write_folder())
    assert folders(copies) == []


def test_changed_weights_get_a_new_copy(write_folder, copies, make_weights):
    first, mark = loaded(write_folder())
    second, other = loaded(write_folder(tensors=make_weights(seed=1)))
    assert not same(first, second) and mark != other
    assert len(folders(copies)) == 2


def test_other_way_of_packing_gets_a_new_copy(write_folder, copies, monkeypatch):
    folder = write_folder()
    loaded(folder)
    monkeypatch.setattr(int8_cache, "VERSION", 99)
    loaded(folder)
    assert [path.name.split("-")[0] for path in folders(copies)] == [f"packed{VERSION}", "packed99"]


def cut(path: Path) -> None:
    os.truncate(path / DATA, 100)


def flip(path: Path) -> None:
    data = bytearray((path / DATA).read_bytes())
    data[1000] ^= 1
    (path / DATA).write_bytes(data)


def lose(path: Path) -> None:
    (path / DATA).unlink()


def unlist(path: Path) -> None:
    (path / "manifest.json").write_text("{}")


@pytest.mark.parametrize("damage", [cut, flip, lose, unlist])
def test_damaged_copy_is_made_again(write_folder, copies, floats_closed, damage):
    folder = write_folder()
    first, _ = loaded(folder)
    damage(folders(copies)[0])
    assert same(loaded(folder)[0], first)
    floats_closed()
    assert same(loaded(folder)[0], first)


def test_cache_that_cannot_be_written_is_told_and_the_model_loads(write_folder, tmp_path, monkeypatch, caplog):
    folder = write_folder()
    first, _ = loaded(folder)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "file"))
    assert same(loaded(folder)[0], first)
    assert "the packed weights are not kept: the model cache cannot be written" in caplog.text


def test_wrong_weights_are_refused_and_leave_no_copy(write_folder, copies):
    folder = write_folder()
    os.truncate(folder / "model.safetensors", 5000)
    with pytest.raises(WeightsError):
        load.load(str(folder))
    assert folders(copies) == []

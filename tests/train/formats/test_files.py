"""No file of somebody else runs code here, and what is wrong with one is said by name."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood.errors import ModelError, WeightsError
from draftwood.train.formats.files import read_folder, read_tensors
from format_heads import KINDS, Conversion, edit, folder_of, read


class Trap:
    """What a hostile file would hold: opening it in the ordinary way makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    "save", [torch.save, lambda x, path: path.write_bytes(pickle.dumps(x))], ids=["torch", "plain"]
)
@pytest.mark.parametrize("name", ["pytorch_model.bin", "medusa_lm_head.pt"])
def test_a_pickle_with_code_in_it_is_refused_and_runs_nothing(tmp_path: Path, save: Any, name: str):
    (tmp_path / "config.json").write_text("{}")
    save({"fc.weight": torch.ones(2), "more": Trap(tmp_path / "sprung")}, tmp_path / name)
    with pytest.raises(WeightsError, match=r"holds more than tensors.*\nhint: no code was run"):
        read(tmp_path, Conversion())
    assert not (tmp_path / "sprung").exists()


def test_control_the_pickle_runs_code_without_the_check(tmp_path: Path):
    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung")))
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize("form", KINDS)
@pytest.mark.parametrize(("value", "said"), [(float("nan"), "NaN"), (float("inf"), "infinite")])
def test_a_weight_that_is_not_finite_is_refused_by_name(tmp_path: Path, form: str, value: float, said: str):
    folder, spoilt = folder_of(form, tmp_path / "h"), []

    def change(_: Any, t: Any) -> None:
        spoilt.append(next(name for name in sorted(t) if t[name].ndim == 2))
        t[spoilt[0]][1, 2] = value

    edit(folder, change)
    with pytest.raises(WeightsError, match=f"{spoilt[0]} holds {said}"):
        read(folder, Conversion())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32(tmp_path: Path, dtype: torch.dtype):
    folder = folder_of("eagle", tmp_path / "h")
    edit(folder, lambda _, t: t.update({name: x.to(dtype) for name, x in t.items()}))
    assert all(t.dtype == torch.float32 for t in read(folder, Conversion())[1].tensors.values())


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "no config.json; it holds nothing"),
        ({"config.json": "{}", "notes.txt": ""}, "no weights; it holds config.json, notes.txt"),
        ({"config.json": "[]", "model.safetensors": ""}, "should hold a JSON object"),
        ({"config.json": "{}", "model.safetensors": "short"}, "cannot be read"),
        ({"config.json": "{}", "pytorch_model.bin": ""}, "cannot be read|more than tensors"),
        ({"config.json": "{}", "model.safetensors.index.json": '{"weight_map": {"a": "../b"}}'}, "not in its folder"),
        ({"config.json": "{}", "model.safetensors.index.json": "{}"}, "no weight_map"),
    ],
)
def test_a_folder_that_holds_no_head_is_refused(tmp_path: Path, files: dict[str, str], why: str):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelError, match=why):
        read_folder(tmp_path)


def test_shards_are_read_together(tmp_path: Path):
    folder = folder_of("eagle", tmp_path / "h")
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    half = sorted(whole)[::2]
    places = {name: "a.safetensors" if name in half else "b.safetensors" for name in whole}
    for shard in ("a.safetensors", "b.safetensors"):
        save_file({name: whole[name] for name, at in places.items() if at == shard}, folder / shard)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert read_folder(folder).tensors.keys() == whole.keys()
    index.write_text(json.dumps({"weight_map": {**places, "more": "a.safetensors"}}))
    with pytest.raises(WeightsError, match="names more, which the files do not hold"):
        read_folder(folder)


@pytest.mark.parametrize(("held", "why"), [([torch.ones(1)], "holds a list"), ({"a": [1]}, "a is a list")])
def test_a_pickle_of_something_else_is_refused(tmp_path: Path, held: Any, why: str):
    torch.save(held, tmp_path / "x.bin")
    with pytest.raises(WeightsError, match=why):
        read_tensors(tmp_path / "x.bin")


def test_a_quantised_head_is_refused(tmp_path: Path):
    folder = folder_of("eagle", tmp_path / "h")
    edit(folder, lambda _, t: t.update({"fc.weight": t["fc.weight"].to(torch.float8_e4m3fn)}))
    with pytest.raises(WeightsError, match=r"fc.weight has type torch.float8.*\nhint: use the unquantised head"):
        read(folder, Conversion())
    edit(folder, lambda _, t: t.update({"fc.weight": torch.ones(32, 64, dtype=torch.int32)}))
    with pytest.raises(WeightsError, match=r"fc.weight has type torch.int32, it should hold floats"):
        read(folder, Conversion())

"""A model in several files is one model, whichever part is named."""

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from draftwood.errors import WeightsError
from draftwood.models.loading.gguf.header import read_header
from draftwood.models.loading.gguf.split import parts_of, read_model
from draftwood.models.loading.load import load


@pytest.fixture
def split(write_gguf, tmp_path: Path) -> tuple[Path, list[Path]]:
    """A whole file, and the same in three parts."""
    whole = write_gguf()
    header = read_header(whole)
    names = list(header.tensors)
    cuts = [names[:7], names[7:15], names[15:]]
    paths = [tmp_path / f"model-{i + 1:05d}-of-00003.gguf" for i in range(3)]
    data = np.memmap(whole, np.uint8, "r")
    for i, (path, mine) in enumerate(zip(paths, cuts, strict=True)):
        writer = gguf.GGUFWriter(path, "llama")
        for key, value in header.metadata.items() if i == 0 else ():
            if key == "general.architecture":
                continue
            value = value.tolist() if isinstance(value, np.ndarray) else value
            add = {str: "string", int: "uint32", float: "float32", list: "array"}[type(value)]
            getattr(writer, f"add_{add}")(key, value)
        for key, value in (("split.no", i), ("split.count", 3)):
            writer.add_uint16(key, value)
        writer.add_int32("split.tensors.count", len(names))
        for name in mine:
            info = header.tensors[name]
            raw = data[info.offset : info.offset + info.num_bytes].view(np.float32).reshape(info.shape)
            writer.add_tensor(name, np.ascontiguousarray(raw))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return whole, paths


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_names_the_whole_model(split, cache: Path, given: int):
    whole, paths = split
    assert parts_of(paths[given]) == paths
    left, right = read_model(whole), read_model(paths[given])
    assert left.tensors.keys() == right.tensors.keys() and {x.file for x in right.tensors.values()} == set(paths)
    for dtype in ("auto", "float32"):
        assert load(str(paths[given]), dtype=dtype).fingerprint == load(str(whole), dtype=dtype).fingerprint


def missing(paths: list[Path]) -> None:
    paths[1].unlink()


def cut_short(paths: list[Path]) -> None:
    with paths[2].open("r+b") as file:
        file.truncate(paths[2].stat().st_size - 40)


def swapped(paths: list[Path]) -> None:
    aside = paths[1].rename(paths[1].with_name("aside"))
    paths[2].rename(paths[1])
    aside.rename(paths[2])


def repeated(paths: list[Path]) -> None:
    shutil.copy(paths[1], paths[2])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (missing, r"1 of 3 parts of this model are missing: model-00002-of-00003.gguf\nhint: all parts"),
        (cut_short, r"model-00003-of-00003.gguf: tensor .* ends at byte"),
        (swapped, r"model-00002-of-00003.gguf: holds part 2 \(from 0\) of 3, not part 1"),
        (repeated, r"model-00003-of-00003.gguf: holds part 1"),
    ],
)
def test_parts_that_are_not_one_model_are_refused(split, cache: Path, damage, message: str):
    _, paths = split
    damage(paths)
    with pytest.raises(WeightsError, match=message):
        load(str(paths[0]))


def test_a_part_under_another_name_is_refused(split, cache: Path):
    _, paths = split
    with pytest.raises(WeightsError, match=r"one of 3 parts of a split model, but its name"):
        load(str(paths[0].rename(paths[0].with_name("renamed.gguf"))))

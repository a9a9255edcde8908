"""The files of a head: config.json and weights, in safetensors or in a pickle that holds only tensors."""

import json
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from draftwood.errors import WeightsError
from draftwood.models.loading.checkpoint import read_json
from draftwood.models.loading.tensor_names import is_buffer

CONFIG = "config.json"
# In order of preference: safetensors before pickles.
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "medusa_lm_head.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "medusa_lm_head.pt",
)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The content of a folder. Floats are converted to float32 and finite; integers and booleans are unchanged."""

    folder: Path
    config: dict[str, Any]
    file: str
    tensors: dict[str, Tensor]

    @property
    def where(self) -> str:
        return (self.folder / self.file).as_posix()


def read_folder(folder: Path) -> Found:
    """Reads a folder. WeightsError names the file and the problem."""
    here = sorted(path.name for path in folder.iterdir())
    if CONFIG not in here:
        raise WeightsError(f"{folder}: no {CONFIG}; it holds {_list(here)}\nhint: a head is {CONFIG} and its weights")
    config = read_json(folder / CONFIG)
    file = next((name for name in WEIGHTS if name in here), None)
    if file is None:
        raise WeightsError(f"{folder}: no weights; it holds {_list(here)}\nhint: one of {', '.join(WEIGHTS)}")
    raw = _indexed(folder, file) if file.endswith(".index.json") else read_tensors(folder / file)
    where = (folder / file).as_posix()
    tensors = {name: _plain(where, name, t) for name, t in raw.items() if not is_buffer(name)}
    return Found(folder, config, file, tensors)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors by name. Pickles are loaded with weights_only, which runs no code."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        with warnings.catch_warnings(action="ignore"):  # about old pickle protocols
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path}: holds more than tensors, so loading it could run code: {_why(error)}\n"
            "hint: no code was run. If you trust the file, load it yourself and save its tensors as safetensors"
        ) from None
    except Exception as error:  # damaged pickles raise many types of errors
        raise WeightsError(
            f"{path}: cannot be read: {_why(error)}\nhint: it is truncated or damaged; download it again"
        ) from None
    if not isinstance(loaded, Mapping):
        raise WeightsError(f"{path}: holds a {type(loaded).__name__}, not tensors by name")
    odd = [f"{name} is a {type(t).__name__}" for name, t in loaded.items() if not isinstance(t, Tensor)]
    if odd:
        raise WeightsError(f"{path}: not all of it is tensors: {_list(odd)}")
    return {str(name): t for name, t in loaded.items()}


def _indexed(folder: Path, index: str) -> dict[str, Tensor]:
    places = read_json(folder / index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise WeightsError(f"{folder / index}: no weight_map")
    shards = sorted({str(shard) for shard in places.values()})
    for shard in shards:
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise WeightsError(f"{folder / index}: names {shard!r}, which is not in its folder")
    tensors = {name: t for shard in shards for name, t in read_tensors(folder / shard).items()}
    absent = sorted(set(places) - set(tensors))
    if absent:
        raise WeightsError(f"{folder / index}: names {_list(absent)}, which the files do not hold")
    return tensors


def _plain(where: str, name: str, t: Tensor) -> Tensor:
    if not t.dtype.is_floating_point:
        if t.dtype.is_complex or (t.dtype.is_signed is False and t.dtype not in (torch.bool, torch.uint8)):
            raise WeightsError(f"{where}: {name} has type {t.dtype}, which is not supported")
        return t
    if t.dtype not in FLOATS:
        raise WeightsError(f"{where}: {name} has type {t.dtype}\nhint: use the unquantised head")
    t = t.float()
    if not bool(torch.isfinite(t).all()):
        what = "NaN" if bool(torch.isnan(t).any()) else "infinite"
        raise WeightsError(f"{where}: {name} holds {what} weights\nhint: the file is damaged, or the training diverged")
    return t.contiguous()


def check_names(found: Found, wanted: Shapes, optional: Shapes | None = None, why: str = "") -> None:
    """Checks that no tensor is missing or unexpected and that shapes match the config. `why` explains a common mistake."""
    known = {**wanted, **(optional or {})}
    have = found.tensors
    missing, extra = sorted(set(wanted) - set(have)), sorted(set(have) - set(known))
    if missing or extra:
        said = [f"missing {_list(missing)}"] if missing else []
        said += [f"unexpected {_list(extra)}"] if extra else []
        raise WeightsError(f"{found.where}: {'; '.join(said)}" + (f"\nhint: {why}" if why else ""))
    for name, shape in known.items():
        if name in have and tuple(have[name].shape) != shape:
            raise WeightsError(
                f"{found.where}: {name} is {list(have[name].shape)}, {CONFIG} asks for {list(shape)}\n"
                f"hint: does {CONFIG} belong to these weights?"
            )
        if name in have and not have[name].dtype.is_floating_point and name not in ("d2t", "t2d", "token_map"):
            raise WeightsError(f"{found.where}: {name} has type {have[name].dtype}, it should hold floats")


def integer(found: Found, config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A positive integer of a config."""
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise WeightsError(f"{found.folder / CONFIG}: {key!r} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise WeightsError(f"{found.folder / CONFIG}: {key!r} should be a positive integer, it is {value!r}")
    return value


def flag(found: Found, config: Mapping[str, Any], key: str, default: bool = False) -> bool:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise WeightsError(f"{found.folder / CONFIG}: {key!r} should be true or false, it is {value!r}")
    return value


def write_folder(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], floats: int | None, file: str = WEIGHTS[0]
) -> None:
    """config.json and one file of weights, float32 unless `floats` is 16."""
    folder.mkdir(parents=True)
    stored = {
        name: (t.half() if floats == 16 and t.is_floating_point() else t).contiguous().clone()
        for name, t in tensors.items()
    }
    note = {"dtype": "float16" if floats == 16 else "float32"}
    text = json.dumps({**config, **note, "torch_dtype": note["dtype"]}, indent=2) + "\n"
    (folder / CONFIG).write_text(text, "utf-8")
    if file.endswith(".pt"):
        torch.save(stored, folder / file)
    else:
        # Not by save_file, which makes files that only their owner can read.
        (folder / file).write_bytes(save(stored, metadata={"format": "pt"}))


def _list(names: list[str], most: int = 8) -> str:
    return (", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")) or "nothing"


def _why(error: Exception) -> str:
    """The relevant line of torch's long message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    relevant = [line for line in lines if "WeightsUnpickler error" in line or "GLOBAL" in line]
    return (relevant or lines or [type(error).__name__])[0][:300]

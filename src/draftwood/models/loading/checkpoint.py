"""A Hugging Face folder: config.json and safetensors, single or sharded. Never opens a pickle, never runs its code.

`Checkpoint` is a mapping from tensor name to tensor. Files are memory-mapped: opening one reads its header, and the bytes
of a tensor are read on first use.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.errors import ModelError, WeightsError
from draftwood.models.loading import hf_config
from draftwood.models.loading.tensor_names import EMBEDDING, HEAD, check_names, expected, is_buffer

__all__ = ["Checkpoint", "check_names", "expected", "read_config", "read_json"]

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
FLOATS = {"F64", "F32", "F16", "BF16"}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; ModelError names a file that holds none. A missing file reads as {}."""
    try:
        raw = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{path}: should hold a JSON object, not {type(raw).__name__}")
    return raw


def read_config(folder: Path, name: str | None = None) -> ModelConfig:
    """The ModelConfig of a folder; end tokens from config.json and generation_config.json together.

    `name` is what the user calls the model, for hints; without one it is the folder.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{folder}: no config.json\nhint: a model folder holds config.json, *.safetensors and tokenizer.json"
        )
    generation = read_json(folder / "generation_config.json")
    return hf_config.parse(read_json(path), generation, where=path.as_posix(), name=name or folder.as_posix())


def check_finite(tensors: Iterable[tuple[str, Tensor]], where: str) -> None:
    """Read every weight once; WeightsError names the first tensor with infinite or undefined ones."""
    for name, tensor in tensors:
        total = tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32))
        # One read of the tensor; a second only where the sum overflowed.
        if not torch.isfinite(total) and not torch.isfinite(tensor).all():
            raise WeightsError(
                f"{where}: tensor {name!r} holds infinite or undefined (NaN) weights\n"
                "hint: the file is damaged, or the model was saved from a training run that diverged; download it again"
            )


class Checkpoint(Mapping[str, Tensor]):
    """The weights of one folder by Hugging Face name, checked against `config`.

    Iterates in file order. A tied LM head that was saved too must equal the embedding and is then left out.
    """

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        self.folder = folder
        self.config = config
        self._files: dict[str, Any] = {}  # tensor name -> open file
        self._shapes: dict[str, tuple[int, ...]] = {}

    @classmethod
    def open(cls, folder: Path, config: ModelConfig) -> "Checkpoint":
        """Map every file and check names, shapes and types; WeightsError names what is wrong."""
        self = cls(folder, config)
        for path, listed in _files(folder).items():
            self._add(path, listed)
        check_names(config, self._shapes, where=str(folder))
        if config.tie_embeddings and HEAD in self._files:
            self._drop_tied_head()
        return self

    def _add(self, path: Path, listed: set[str] | None) -> None:
        try:
            file = safe_open(path, framework="pt", device="cpu")
            names = set(file.keys())
            for name in sorted(names):
                if is_buffer(name):
                    continue
                if name in self._files:
                    raise WeightsError(f"{path}: tensor {name!r} is in two files")
                part = file.get_slice(name)
                if part.get_dtype() not in FLOATS:
                    raise WeightsError(
                        f"{path}: tensor {name!r} has type {part.get_dtype()}, not one of {', '.join(sorted(FLOATS))}\n"
                        "hint: use the unquantised model or a GGUF file"
                    )
                self._files[name] = file
                self._shapes[name] = tuple(part.get_shape())
        except (SafetensorError, OSError, ValueError) as error:
            raise WeightsError(f"{path}: not a whole safetensors file: {error}\nhint: {_why_broken(path)}") from error
        absent = (listed or set()) - names
        if absent:
            raise WeightsError(f"{path}: lacks {', '.join(sorted(absent)[:8])}, which {INDEX} places in it")

    def _drop_tied_head(self) -> None:
        if not torch.equal(self[HEAD], self[EMBEDDING]):
            raise WeightsError(
                f"{self.folder}: {HEAD} differs from {EMBEDDING}, but config.json says that they are tied\n"
                "hint: set tie_word_embeddings to false in config.json if the model has a head of its own"
            )
        del self._files[HEAD]

    def __getitem__(self, name: str) -> Tensor:
        return self._files[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _files(folder: Path) -> dict[Path, set[str] | None]:
    """Safetensors files to open, each with the tensors an index promises in it."""
    if (folder / INDEX).is_file():
        return _indexed(folder)
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: None}
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return {found[0]: None}
    if found:
        raise WeightsError(
            f"{folder}: {len(found)} safetensors files and no {INDEX}: {', '.join(path.name for path in found[:8])}\n"
            "hint: the download is incomplete, or the folder holds several models"
        )
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    if pickles:
        raise WeightsError(
            f"{folder}: no safetensors, only {', '.join(pickles[:4])}\n"
            "hint: such files can run code when opened and are never read; save the model again as safetensors"
        )
    raise WeightsError(f"{folder}: no weights\nhint: expected {SINGLE}, or {INDEX} and the files it names")


def _indexed(folder: Path) -> dict[Path, set[str] | None]:
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise WeightsError(f"{folder / INDEX}: no weight_map")
    shards: dict[Path, set[str] | None] = {}
    for name, shard in places.items():
        if not isinstance(shard, str) or Path(shard).name != shard:  # a shard lies beside its index, nowhere else
            raise WeightsError(f"{folder / INDEX}: {name!r} is said to be in {shard!r}, which is not a file name")
        shards.setdefault(folder / shard, set()).add(name)  # pyright: ignore[reportOptionalMemberAccess]
    missing = [path.name for path in shards if not path.is_file()]
    if missing:
        raise WeightsError(
            f"{folder}: {len(missing)} of {len(shards)} weight files are missing: {', '.join(missing[:8])}\n"
            "hint: the download is incomplete"
        )
    return shards


def _why_broken(path: Path) -> str:
    try:
        with path.open("rb") as file:
            start = file.read(20)
    except OSError:
        return "check that the file is readable"
    if start.startswith(b"version https://git"):
        return "this is a pointer of Git LFS, not the weights; run `git lfs pull` in the folder"
    return "the file is truncated or damaged; download it again"

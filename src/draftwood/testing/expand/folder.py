"""An expanded model as a folder in Hugging Face form: one safetensors file for each part, so that memory holds one part.

config.json                            tokenizer.json and its companions
model-00001-of-00034.safetensors ..    model.safetensors.index.json
heads/NAME.safetensors                 heads, bound to the expanded model
model.gguf                             instead of all but the heads, if asked for
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.drafters.nets.files.find import ships_for
from draftwood.drafters.nets.files.store import Head, read, to_bytes
from draftwood.errors import OptionError
from draftwood.models.loading.checkpoint import INDEX, Checkpoint, read_config
from draftwood.models.loading.gguf.config import read_config as read_gguf_config
from draftwood.models.loading.gguf.header import read_header
from draftwood.models.loading.gguf.source import GgufSource
from draftwood.models.loading.hf_config import unparse
from draftwood.models.loading.load import fingerprint, fingerprint_of, load_weights
from draftwood.models.loading.resolve import resolve
from draftwood.testing.expand.fill import Filling
from draftwood.testing.expand.gguf import check, write_gguf
from draftwood.testing.expand.heads import KINDS, expand_head, layer_config
from draftwood.testing.expand.model import parts
from draftwood.testing.expand.new_folder import new_folder
from draftwood.testing.expand.shape import Shape, expanded, num_parameters

COPIED = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
)  # fmt: skip
CONFIG, HEADS, GGUF = "config.json", "heads", "model.gguf"
SPARE = 1 << 30  # bytes left on the disk, heads included

Tell = Callable[[int, int], None]
"""(bytes written, bytes in all) after each file."""


@dataclass(frozen=True, slots=True)
class Written:
    config: ModelConfig
    num_parameters: int
    num_bytes: int  # of the model's weights
    heads: tuple[Path, ...]


def write_expanded(
    model: str,
    shape: Shape,
    out: Path,
    filling: Filling,
    heads: Sequence[str] = (),
    tell: Tell = lambda done, total: None,
    gguf: str = "",
) -> Written:
    """`heads`: kinds that ship for the model, or files. `gguf`: the type of blocks of a GGUF file that holds the weights
    instead. OptionError before anything is written if something does not fit."""
    if model.startswith("hf:"):
        raise OptionError(f"{model} cannot be expanded: transformers runs it\nhint: a model without hf:")
    config, tensors, _ = load_weights(model)
    new = expanded(config, shape)
    found = _heads(heads, config, new, fingerprint(config, tensors))
    place = resolve(model, light=True)
    known = check(place.gguf, new, gguf) if gguf else {}
    size = num_parameters(new) * filling.dtype.itemsize
    with new_folder(out, size + SPARE) as folder:
        made = parts(config, tensors, new, filling)
        if gguf:
            size = write_gguf(folder / GGUF, known, new, made, gguf, lambda done: tell(done, size))
            mark = _gguf_fingerprint(folder / GGUF)
        else:
            raw = unparse(new) | {"torch_dtype": str(filling.dtype).removeprefix("torch.")}
            (folder / CONFIG).write_text(json.dumps(raw, indent=1), "utf-8")
            _write_weights(folder, made, new.num_layers + 2, lambda done: tell(done, size))
            for name in COPIED:
                if (place.folder / name).is_file():
                    shutil.copyfile(place.folder / name, folder / name)
            mark = _fingerprint(folder)
        (folder / HEADS).mkdir()
        for name, head in found.items():
            wide = expand_head(head, config, new, mark, replace(filling, dtype=torch.float32))
            vectors = {name: 32 for name, t in wide.tensors.items() if t.ndim < 2}
            wide.record["target"] = out.name
            (folder / HEADS / name).write_bytes(to_bytes(wide, bits=vectors))
        if not found:
            (folder / HEADS).rmdir()
    return Written(new, num_parameters(new), size, tuple(out / HEADS / name for name in found))


def _heads(asked: Sequence[str], old: ModelConfig, new: ModelConfig, mark: str) -> dict[str, Head]:
    """Heads by the name of their new file, all of them known to fit."""
    found: dict[str, Head] = {}
    for name in asked:
        path, file = (ships_for(name, mark), f"{name}.safetensors") if name in KINDS else (Path(name), Path(name).name)
        if path is None:
            raise OptionError(f"no head of kind {name!r} ships for this model\nhint: its file, or leave it out")
        if not path.is_file():
            raise OptionError(
                f"no head is called {name!r}, and there is no such file\nhint: {', '.join(KINDS)}, or a file"
            )
        if file in found:
            raise OptionError(f"two heads would be written to {HEADS}/{file}\nhint: rename one")
        head = read(path)
        if head.target != mark:
            raise OptionError(f"{path} was trained for another target ({head.target}), not for this one ({mark})")
        layer_config(head.config, old, new)
        found[file] = head
    return found


def _write_weights(folder: Path, made: Iterator[dict[str, Tensor]], count: int, tell: Callable[[int], None]) -> None:
    """The files and their index."""
    places, done = dict[str, str](), 0
    for i, part in enumerate(made):
        file = f"model-{i + 1:05}-of-{count:05}.safetensors"
        try:
            save_file(part, folder / file, metadata={"format": "pt"})
        except SafetensorError as error:  # a full disk, for example
            raise OptionError(f"{folder / file} cannot be written: {error}") from None
        shutil.copymode(folder / CONFIG, folder / file)  # safetensors lets nobody else read what it writes
        places |= dict.fromkeys(part, file)
        done += sum(t.nbytes for t in part.values())
        tell(done)
    index = {"metadata": {"total_size": done}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index, indent=1), "utf-8")


def _fingerprint(folder: Path) -> str:
    """As `load` will find it."""
    config = read_config(folder)
    return fingerprint(config, Checkpoint.open(folder, config))


def _gguf_fingerprint(path: Path) -> str:
    """As `load` will find it."""
    header = read_header(path)
    config = read_gguf_config(header)
    return fingerprint_of(config, GgufSource(header, config).last_rows)

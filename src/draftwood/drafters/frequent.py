"""Which tokens a trimmed head keeps: the most frequent ones, by counts from a file or from texts, and the control tokens.

A count file holds one number per token of the vocabulary: `.npy`, or `.safetensors` with one tensor `counts`.
"""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from safetensors.torch import load_file
from torch import Tensor

from draftwood import weights as shipped
from draftwood.core.protocols import Runner
from draftwood.drafters.nets.files.find import AUTO, command, fingerprint
from draftwood.errors import OptionError, need_at_least

WEIGHTS = Path(shipped.__file__).parent  # counts that ship with the package, by the target's fingerprint
_BLOCK = 1 << 20  # characters encoded at a time


def read_counts(source: str, target: Runner) -> Int[Tensor, "V"]:
    """Counts from a file, or for "auto" those that ship for this target. OptionError says what is wrong with them."""
    path = _shipped(target) if source == AUTO else Path(source)
    try:
        values = load_file(path)["counts"].long() if path.suffix == ".safetensors" else _numpy(path)
    except Exception as error:  # missing, of another format, without the tensor: whatever a named file can be
        raise OptionError(
            f"{path}: cannot be read as token counts: {type(error).__name__}: {error}\n"
            "hint: a .npy file of one number per token, or .safetensors with a tensor named counts"
        ) from None
    if tuple(values.shape) != (target.info.vocab_size,):
        raise OptionError(
            f"{path} holds counts of shape {tuple(values.shape)}, the target has {target.info.vocab_size} tokens"
        )
    if bool((values < 0).any()) or not bool((values > 0).any()):
        raise OptionError(f"{path} holds counts that are negative or all zero")
    return values


def count_texts(files: Sequence[str], target: Runner) -> Int[Tensor, "V"]:
    """How often each token stands in these files of plain text."""
    tokenizer = target.info.tokenizer
    if tokenizer is None:
        raise OptionError("texts cannot be counted: this target has no tokenizer\nhint: load it by name")
    counts = torch.zeros(target.info.vocab_size, dtype=torch.int64)
    for file in files:
        try:
            with Path(file).open(encoding="utf-8", errors="replace") as text:
                while block := text.read(_BLOCK):
                    counts += torch.bincount(torch.tensor(tokenizer.encode(block)), minlength=target.info.vocab_size)
        except OSError as error:
            raise OptionError(f"text {file!r} cannot be read: {error.strerror or error}") from None
    if not int(counts.sum()):
        found = f"there is none in {', '.join(map(repr, files))}" if files else "none are given"
        raise OptionError(f"texts are needed to count tokens in, and {found}\nhint: files of plain text: texts=FILE")
    return counts


def count_written(dialogues: Iterable[Any], vocab_size: int) -> np.ndarray:
    """How often the target wrote each token: dialogues have `tokens` and the spans of its `answers`. [vocab]"""
    total = np.zeros(vocab_size, dtype=np.int64)
    for d in dialogues:
        for start, stop in d.answers:
            total += np.bincount(d.tokens[start:stop], minlength=vocab_size)
    return total


def counts_name(target: Runner) -> str:
    """The name of this target's count file, among those that ship too."""
    return f"counts-{fingerprint(target) or 'unnamed'}.npy"


def counts_bytes(counts: np.ndarray) -> bytes:
    """A count file, as `read_counts` reads it."""
    file = io.BytesIO()
    np.save(file, counts.clip(0, np.iinfo(np.int32).max).astype(np.int32), allow_pickle=False)
    return file.getvalue()


def most_frequent(counts: Int[Tensor, "V"], vocab_size: int, target: Runner) -> Int[Tensor, "W"]:
    """The `vocab_size` most frequent tokens, smaller ids first among equals, and every control token; in rising order."""
    need_at_least("trimmed vocabulary", vocab_size=(vocab_size, 1))
    best = counts.argsort(descending=True, stable=True)[:vocab_size].tolist()
    return torch.tensor(sorted({*best, *(t for t in target.info.control_tokens if t < target.info.vocab_size)}))


def coverage(counts: Int[Tensor, "V"], keep: Int[Tensor, "W"]) -> float:
    """Share of what was counted that the kept tokens can say."""
    return int(counts[keep].sum()) / max(int(counts.sum()), 1)


def _numpy(path: Path) -> Tensor:
    return torch.from_numpy(np.load(path, allow_pickle=False).astype(np.int64))


def _shipped(target: Runner) -> Path:
    name = counts_name(target)
    if not (WEIGHTS / name).is_file():
        raise OptionError(
            f"no token counts ship for this target\n"
            f"hint: {command('vocab_trim', target)}, then --option counts=FOLDER/{name}"
        )
    return WEIGHTS / name

"""Keys: where a random number stands. (seed, root position, node, turn, purpose, stream) are folded into 64 bits by a hash.

The hash is written once, over operators. It runs on tensors where there are many numbers or an accelerator holds them, on
numpy arrays where there are few, and on a Python int where there is one: rules ask for one number at a time, thousands of
times, and numpy takes a third, an int a tenth of the time that a tensor takes.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core import host

SMALL = 4096  # numbers that numpy is quicker with
_ONES, _UNIT = 2**64 - 1, 2.0**-53
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Word = Any  # an int64 tensor, a uint64 array or an int below 2^64


class _Kind(NamedTuple):
    """What differs between the kinds of numbers that the hash runs on."""

    constants: tuple[Any, ...]
    shift: Callable[[Word, int], Word]  # to the right, zeros coming in
    wrap: Callable[[Word], Word]  # drops what is above 64 bits


def fold(key: Int[Tensor, "..."], *words: Int[Tensor, "..."] | int) -> Int[Tensor, "..."]:
    """More words into a key, broadcasting. Order matters, so (1, 2) and (2, 1) are different places."""
    kind, (folded, *others) = _read(key, *words)
    for each in others:
        folded = _fold(folded, each, kind)
    if kind is _TENSORS:
        return folded
    if kind is _ARRAYS:
        return torch.from_numpy(folded.view(np.int64))  # pyright: ignore[reportUnknownMemberType]
    shape = max((w.shape for w in (key, *words) if not isinstance(w, int)), key=len)
    return torch.from_numpy(np.array(folded, np.uint64).view(np.int64).reshape(shape))  # pyright: ignore


def fold_ints(key: int, *words: int) -> int:
    """The same for one key that is a Python int: no tensor is made on the way."""
    folded = key & _ONES
    for each in words:
        folded = _fold(folded, each & _ONES, _INTS)
    return folded - 2**64 if folded >> 63 else folded


def uniform(key: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """53 random bits of a folded key as a float64 in [0, 1)."""
    kind, (bits,) = _read(key)
    return _floats(_uniform(bits, kind), key.shape)


def digits(key: Int[Tensor, "*S"]) -> Float[Tensor, "*S 3"]:
    """The three uniforms of one pick: of the key itself and of the key with 1 and with 2 folded in."""
    kind, (bits,) = _read(key)
    shape = (*key.shape, 3)
    if kind is _INTS:
        return _floats([_uniform(each, kind) for each in (bits, _fold(bits, 1, kind), _fold(bits, 2, kind))], shape)
    bits = bits[..., None]
    if kind is _ARRAYS:
        return _floats(_uniform(np.concatenate([bits, _fold(bits, _ONE_TWO, kind)], axis=-1), kind), shape)
    one_two = torch.arange(1, 3, device=key.device)
    return _uniform(torch.cat([bits, _fold(bits, one_two, kind)], dim=-1), kind)


@cache
def word(text: str) -> int:
    """A name (purpose, stream) as a signed 64-bit number that no run, version or platform changes."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _fold(key: Word, other: Word, kind: _Kind) -> Word:
    golden, mix_1, _ = kind.constants
    return _mix(kind.wrap((key ^ other) + golden), kind) ^ kind.wrap(key * mix_1)


def _uniform(key: Word, kind: _Kind) -> Any:
    bits = kind.shift(_mix(kind.wrap(key + kind.constants[0]), kind), 11)
    return (bits.double() if kind is _TENSORS else bits) * _UNIT


def _mix(x: Word, kind: _Kind) -> Word:
    _, mix_1, mix_2 = kind.constants
    x = kind.wrap((x ^ kind.shift(x, 30)) * mix_1)
    x = kind.wrap((x ^ kind.shift(x, 27)) * mix_2)
    return x ^ kind.shift(x, 31)


def _shift_int(x: Word, bits: int) -> Word:
    return x >> bits


def _shift_array(x: Word, bits: int) -> Word:
    return x >> _BITS[bits]


def _shift_signed(x: Word, bits: int) -> Word:
    return (x >> bits) & (_ONES >> bits)  # int64 shifts copy the sign, which the mask takes off


def _wrap_int(x: Word) -> Word:
    return x & _ONES


def _wrap_none(x: Word) -> Word:
    return x  # arrays and tensors drop it by themselves


_BITS = {bits: np.uint64(bits) for bits in (11, 27, 30, 31)}
_HASH = (_GOLDEN, _MIX_1, _MIX_2)
_INTS = _Kind(_HASH, _shift_int, _wrap_int)
_ARRAYS = _Kind(tuple(np.uint64(x) for x in _HASH), _shift_array, _wrap_none)
_TENSORS = _Kind(tuple(x - 2**64 for x in _HASH), _shift_signed, _wrap_none)
_ONE_TWO = np.array([1, 2], np.uint64)


def _read(*words: Tensor | int) -> tuple[_Kind, list[Word]]:
    """The words as the kind of numbers that is quickest for them."""
    single = True
    for each in words:
        if isinstance(each, int):
            continue
        size = each.numel()
        if size > SMALL or not each.ndim or each.dtype != torch.int64 or not host.on_host(each.device):
            return _TENSORS, list(words)
        single = single and size == 1
    if single:
        return _INTS, [int(each) & _ONES for each in words]
    return _ARRAYS, [np.uint64(w & _ONES) if isinstance(w, int) else w.numpy().view(np.uint64) for w in words]


def _floats(x: Any, shape: Any) -> Tensor:
    return x if isinstance(x, Tensor) else torch.from_numpy(np.asarray(x).reshape(shape))  # pyright: ignore

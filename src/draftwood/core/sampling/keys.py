"""Keys: where a random number stands. (seed, root position, node, turn, purpose, stream) are folded into 64 bits by a hash.

The hash is written three times, with the same bits: for tensors of any device; in numpy, where a few numbers take a third of
the time; in plain whole numbers, where one number takes a tenth. Rules ask for one number at a time, thousands of times.
"""

import hashlib
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from draftwood.core import host

_GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio, as a signed 64-bit number
_MIX_1 = -0x40A7B892E31B1A47
_MIX_2 = -0x6B2FB644ECCEEE15
SMALL = 4096  # numbers that numpy is quicker with


def fold(key: Int[Tensor, "..."], *words: Int[Tensor, "..."] | int) -> Int[Tensor, "..."]:
    """More words into a key, broadcasting. Order matters, so (1, 2) and (2, 1) are different places."""
    quick = all(isinstance(w, int) or _quick(w) for w in (key, *words))
    if quick and all(isinstance(w, int) or w.numel() == 1 for w in (key, *words)):
        one = int(key) & _ONES
        for each in words:
            one = _folded_one(one, int(each) & _ONES)
        shape = max((w.shape for w in (key, *words) if not isinstance(w, int)), key=len)
        return _tensor(np.array(one, np.uint64).view(np.int64).reshape(shape))
    if quick:
        bits = _bits(key)
        for each in words:
            bits = _folded(bits, np.uint64(each & _ONES) if isinstance(each, int) else _bits(each))
        return _tensor(bits.view(np.int64))
    for each in words:
        key = _mix((key ^ each) + _GOLDEN) ^ (key * _MIX_1)
    return key


def uniform(key: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """53 random bits of a folded key as a float64 in [0, 1)."""
    if not _quick(key):
        return _shift(_mix(key + _GOLDEN), 11).to(torch.float64) * _UNIT
    if key.numel() == 1:
        return _tensor(np.array(_uniform_one(int(key) & _ONES)).reshape(key.shape))
    return _tensor(_uniform(_bits(key)))


def digits(key: Int[Tensor, "*S"]) -> Float[Tensor, "*S 3"]:
    """The three uniforms of one pick."""
    if not _quick(key):
        return torch.stack([uniform(key), uniform(fold(key, 1)), uniform(fold(key, 2))], dim=-1)
    if key.numel() == 1:
        one = int(key) & _ONES
        found = [_uniform_one(each) for each in (one, _folded_one(one, 1), _folded_one(one, 2))]
        return _tensor(np.array(found).reshape(*key.shape, 3))
    bits = _bits(key)[..., None]
    return _tensor(_uniform(np.concatenate([bits, _folded(bits, _DIGITS)], axis=-1)))


@cache
def word(text: str) -> int:
    """A name (purpose, stream) as a signed 64-bit number that no run, version or platform changes."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _quick(x: Tensor | int) -> bool:
    if isinstance(x, int):
        return True
    return x.ndim > 0 and x.numel() <= SMALL and x.dtype == torch.int64 and host.on_host(x.device)


# Tensors.


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    # int64 shifts copy the sign; the mask makes it the logical shift the hash is defined with.
    return (x >> bits) & ((1 << (64 - bits)) - 1)


# Arrays.

_ONES, _UNIT = 2**64 - 1, 2.0**-53
_WHOLE = [x & _ONES for x in (_GOLDEN, _MIX_1, _MIX_2)]
_ODD = [np.uint64(x) for x in _WHOLE]
_SHIFTS, _ELEVEN, _DIGITS = [np.uint64(x) for x in (30, 27, 31)], np.uint64(11), np.array([1, 2], np.uint64)


def _uniform(bits: NDArray[np.uint64]) -> NDArray[Any]:
    return (_mixed(bits + _ODD[0]) >> _ELEVEN) * _UNIT


def _folded(bits: NDArray[np.uint64], other: Any) -> NDArray[np.uint64]:
    return _mixed((bits ^ other) + _ODD[0]) ^ (bits * _ODD[1])


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> _SHIFTS[0])) * _ODD[1]
    x = (x ^ (x >> _SHIFTS[1])) * _ODD[2]
    return x ^ (x >> _SHIFTS[2])


def _bits(x: Tensor) -> NDArray[np.uint64]:
    return x.numpy().view(np.uint64)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _tensor(x: NDArray[Any]) -> Tensor:
    return torch.from_numpy(x)  # pyright: ignore[reportUnknownMemberType]


# Single numbers.


def _uniform_one(one: int) -> float:
    return (_mixed_one((one + _WHOLE[0]) & _ONES) >> 11) * _UNIT


def _folded_one(one: int, other: int) -> int:
    return _mixed_one(((one ^ other) + _WHOLE[0]) & _ONES) ^ ((one * _WHOLE[1]) & _ONES)


def _mixed_one(x: int) -> int:
    x = ((x ^ (x >> 30)) * _WHOLE[1]) & _ONES
    x = ((x ^ (x >> 27)) * _WHOLE[2]) & _ONES
    return x ^ (x >> 31)

"""The weights of a GGUF file for the packed backends: blocks go from the mapped file to their packed form a few rows at a
time. No float copy is made, except of the few types that the kernels do not read."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.models.backends.int8_weights import Rows, rounded
from draftwood.models.backends.quantised_blocks import GROUP, Kind, Packed, packed_from_blocks
from draftwood.models.loading.gguf.header import TYPES, Header, TensorInfo
from draftwood.models.loading.gguf.weights import dequantise, hf_name, not_finite, raw_rows, row_order, without_offset

# Where the half-precision scales of a block lie. Types that are missing are rounded from floats, which are checked.
SCALES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
SLICE = 1 << 23  # bytes of a file that are packed at a time
LAST = 16  # rows that a fingerprint reads


class GgufSource:
    """Weights by their Hugging Face names."""

    def __init__(self, header: Header, config: ModelConfig) -> None:
        self.header, self.config = header, config
        named = ((hf_name(info.name, header), info) for info in header.tensors.values())
        self._infos: dict[str, TensorInfo] = {name: info for name, info in named if name is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def matrix(self, name: str) -> Rows:
        info = self._infos[name]
        label = TYPES[info.type][0]
        (rows, columns), order = info.shape, self._order(name)
        if label in SCALES:
            return Rows(rows, columns, Kind[label], self._blocks(info, order))
        return rounded(rows, columns, lambda first, last: self._floats(info, order[first:last]))

    def vector(self, name: str) -> Tensor:
        return torch.from_numpy(
            without_offset(self.config, name, self._floats(self._infos[name], self._order(name)).numpy())
        )

    def last_rows(self, name: str) -> bytes:
        """As `load.last_rows`, without reading the others."""
        rows = self._floats(self._infos[name], self._order(name)[-LAST:]).numpy()
        return without_offset(self.config, name, rows).tobytes()

    def num_bytes(self) -> int:
        """Of all weights in the file."""
        return sum(info.num_bytes for info in self._infos.values())

    def _order(self, name: str) -> np.ndarray:
        info = self._infos[name]
        found = row_order(self.header, self.config, name, info.shape[0])
        return np.arange(info.shape[0]) if found is None else found

    def _blocks(self, info: TensorInfo, order: np.ndarray) -> Iterator[Packed]:
        label, raw = TYPES[info.type][0], raw_rows(info)
        step = max(1, SLICE // (raw.shape[1] * GROUP)) * GROUP
        for first in range(0, len(raw), step):
            some = np.ascontiguousarray(raw[order[first : first + step]])
            if not _scales_are_finite(some, info):
                raise not_finite(self.header, info)
            yield packed_from_blocks(torch.from_numpy(some), label, len(some), info.shape[1])

    def _floats(self, info: TensorInfo, order: np.ndarray) -> Tensor:
        if len(info.shape) == 1:
            return torch.from_numpy(dequantise(self.header, info)[order])
        return torch.from_numpy(dequantise(self.header, info, order))


def _scales_are_finite(raw: np.ndarray, info: TensorInfo) -> bool:
    label, _, size = TYPES[info.type]
    blocks = raw.reshape(-1, size)
    high = blocks[:, [at + 1 for at in SCALES[label]]]  # infinite or undefined: all five bits of the exponent are set
    return not bool(((high & 0x7C) == 0x7C).any())

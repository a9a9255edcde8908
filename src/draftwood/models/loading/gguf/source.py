"""The weights of a GGUF file for the packed backends: blocks and floats go from the mapped file to their packed form a few
rows at a time, in their own type. No float copy is made, except of the few types that the kernels do not read."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.models.backends.int8_weights import Rows, rounded
from draftwood.models.backends.quantised_blocks import GROUP, Kind, Packed, packed_from_blocks
from draftwood.models.loading.gguf.header import TYPES, Header, TensorInfo
from draftwood.models.loading.gguf.weights import dequantise, hf_name, not_finite, raw_rows, row_order, without_offset

# Where the half-precision scales of a block lie.
SCALES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
# Words of floats, and the bits that are all set where a number is infinite or undefined.
EXPONENTS = {"F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
SLICE = 1 << 23  # bytes of a file that are packed at a time
LAST = 16  # rows that a fingerprint reads


class GgufSource:
    """Weights by their Hugging Face names. Types in neither table are rounded to 8 bits, floats too with `eight_bits`."""

    def __init__(self, header: Header, config: ModelConfig, *, eight_bits: bool = False) -> None:
        self.header, self.config, self.eight_bits = header, config, eight_bits
        named = ((hf_name(info.name, header), info) for info in header.tensors.values())
        self._infos: dict[str, TensorInfo] = {name: info for name, info in named if name is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def matrix(self, name: str) -> Rows:
        info = self._infos[name]
        label = TYPES[info.type][0]
        (rows, columns), order = info.shape, self._order(name)
        if label in SCALES or (label in EXPONENTS and not self.eight_bits):
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

    @property
    def has_floats(self) -> bool:
        """Whether some matrix is stored in floats."""
        return any(len(info.shape) > 1 and TYPES[info.type][0] in EXPONENTS for info in self._infos.values())

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
            if not _is_finite(some, info):
                raise not_finite(self.header, info)
            yield packed_from_blocks(torch.from_numpy(some), label, len(some), info.shape[1])

    def _floats(self, info: TensorInfo, order: np.ndarray) -> Tensor:
        if len(info.shape) == 1:
            return torch.from_numpy(dequantise(self.header, info)[order])
        return torch.from_numpy(dequantise(self.header, info, order))


def _is_finite(raw: np.ndarray, info: TensorInfo) -> bool:
    label, _, size = TYPES[info.type]
    if label in EXPONENTS:
        word, mask = EXPONENTS[label]
        return not bool(((raw.view(word) & np.asarray(mask, word)) == mask).any())
    blocks = raw.reshape(-1, size)
    high = blocks[:, [at + 1 for at in SCALES[label]]]  # infinite or undefined: all five bits of the exponent are set
    return not bool(((high & 0x7C) == 0x7C).any())

"""Weights in quantised blocks: the block types of GGUF files in their own bits, and floats rounded to blocks."""

from draftwood.models.backends.quantised_blocks.from_floats import pack
from draftwood.models.backends.quantised_blocks.from_gguf import packed_from_blocks
from draftwood.models.backends.quantised_blocks.kinds import BLOCK, GROUP, Kind
from draftwood.models.backends.quantised_blocks.packed import Packed, join, take_rows, unpack, unpack_some
from draftwood.models.backends.quantised_blocks.rounding import round_four_bits

__all__ = [
    "BLOCK",
    "GROUP",
    "Kind",
    "Packed",
    "join",
    "pack",
    "packed_from_blocks",
    "round_four_bits",
    "take_rows",
    "unpack",
    "unpack_some",
]

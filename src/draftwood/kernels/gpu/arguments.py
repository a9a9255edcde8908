"""What the kernels are given besides tensors of one layer. No Triton here: the twins take the same arguments."""

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

STORED_WORDS = 16  # of every node that a later pass of the round may stand below: trees of up to 1,024 nodes


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of attention, and of a block of the cache: [kv_heads, block, head_dim]."""

    heads: int
    kv_heads: int
    head_dim: int
    block: int

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def head_stride(self) -> int:
        return self.block * self.head_dim

    @property
    def block_stride(self) -> int:
        return self.kv_heads * self.head_stride


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """What all layers of a pass share: where its tokens write, and what they attend to. Rows R = lines x width.

    columns of a sequence   0 ............ done ....... begin .......... total
                            committed      known text   nodes of a tree  not there yet
    """

    lines: int
    width: int
    position: Int[Tensor, "R"]
    offset: Int[Tensor, "R"]  # of the entry in a store, in numbers; -1: the token has none
    seen: Int[Tensor, "R"]  # columns [0, seen) are visible
    words: Int[Tensor, "R W"]  # behind `begin` those whose bit is set: the node's ancestors and itself
    slot: Int[Tensor, "B"]
    done: Int[Tensor, "B"]
    begin: Int[Tensor, "B"]
    total: Int[Tensor, "B"]
    count: Int[Tensor, "B"]  # tokens of each line that are not padding
    path: Int[Tensor, "R 64*W"] | None = None  # batch-invariant: the nodes on each token's path, from the top
    depth: Int[Tensor, "R"] | None = None  # how many those are

    @property
    def rows(self) -> int:
        return self.lines * self.width


def power_of_two(x: int) -> int:
    """The next one."""
    return 1 << max(x - 1, 0).bit_length()

"""The suffix index in C++: a suffix tree cut at a depth, at most `depth` steps for each appended token."""

import ctypes
import weakref
from array import array
from collections.abc import Sequence

from draftwood.kernels.cpu.library import Library, SuffixRule
from draftwood.kernels.suffix_index import DraftRule, SuffixDraft


class NativeIndex:
    """Not safe from two threads at once."""

    def __init__(self, library: Library, depth: int) -> None:
        self.depth = depth
        self._calls = library.calls
        self._tree = ctypes.c_void_p(self._calls.draftwood_suffix_new(depth))
        weakref.finalize(self, self._calls.draftwood_suffix_free, self._tree)

    def append(self, sequence: int, tokens: Sequence[int]) -> None:
        self._calls.draftwood_suffix_append(self._tree, sequence, *_ints(tokens))

    def remove(self, sequence: int) -> None:
        self._calls.draftwood_suffix_remove(self._tree, sequence)

    def count(self, tokens: Sequence[int]) -> int:
        return self._calls.draftwood_suffix_count(self._tree, *_ints(tokens)) if tokens else 0

    def draft(self, context: Sequence[int], rule: DraftRule) -> SuffixDraft:
        found, parents = (ctypes.c_int32 * rule.nodes)(), (ctypes.c_int32 * rule.nodes)()
        probs, score, match = (ctypes.c_double * rule.nodes)(), ctypes.c_double(), ctypes.c_int32()
        limits = SuffixRule(rule.nodes, rule.levels, rule.tree, rule.factor, rule.offset, rule.p_min)
        n = self._calls.draftwood_suffix_draft(
            self._tree, *_ints(context[-self.depth :]), limits, found, parents, probs, score, match
        )
        return SuffixDraft(found[:n], parents[:n], probs[:n], score.value, match.value)

    def sizes(self) -> tuple[int, int, int]:
        """Nodes, texts and tokens of texts in memory."""
        sizes = (ctypes.c_int64 * 3)()
        self._calls.draftwood_suffix_sizes(self._tree, sizes)
        return sizes[0], sizes[1], sizes[2]


def _ints(tokens: Sequence[int]) -> tuple[ctypes.Array[ctypes.c_int32], int]:
    data = array("i", tokens)
    return (ctypes.c_int32 * len(data)).from_buffer(data) if data else (ctypes.c_int32 * 0)(), len(data)

"""The tokens that sampling leaves, found by the kernels: the same laws as stock operations make, up to rounding."""

from collections.abc import Sequence
from ctypes import c_double, c_float
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.support import Beside, Few
from draftwood.kernels.cpu.library import Library

_NO_ROW = -2  # said by the kernel


@dataclass(frozen=True, slots=True, eq=False)
class Nucleus:
    """A `Cutter`: the kernels of one level."""

    library: Library

    def __call__(
        self,
        logits: Float[Tensor, "U V"],
        at: Int[Tensor, "R"],
        heat: Sequence[float],
        top_p: Sequence[float],
        min_p: Sequence[float],
        best: Int[Tensor, "U"] | None = None,
    ) -> Few | None:
        count, total = self._find(logits, at, heat, top_p, min_p, best)
        if total < 0:
            return None
        prob, ids = torch.empty(total), torch.empty(total, dtype=torch.int64)
        self.library.calls.draftwood_nucleus_read(len(at), prob.data_ptr(), ids.data_ptr())
        return Few(prob, ids, count, logits.shape[1])

    def beside(
        self,
        logits: Float[Tensor, "U V"],
        at: Int[Tensor, "R"],
        heat: Sequence[float],
        top_p: Sequence[float],
        min_p: Sequence[float],
        best: Int[Tensor, "U"] | None,
        tokens: Int[Tensor, "R C"],
        q: Float[Tensor, "L V"],
        law: Int[Tensor, "R"],
    ) -> Beside | None:
        count, total = self._find(logits, at, heat, top_p, min_p, best)
        if total < 0:
            return None
        (rows, children), most = tokens.shape, max(1, int(count.max()) if len(count) else 0)
        p, other = torch.empty(2, rows, most + children + 1, dtype=torch.float64)
        ids, place = torch.empty(p.shape, dtype=torch.int64), torch.empty_like(tokens)
        said: int = self.library.calls.draftwood_beside(
            rows, logits.shape[1], most, children, tokens.data_ptr(), q.data_ptr(), len(q), law.data_ptr(),
            *(x.data_ptr() for x in (p, other, ids, place)),
        )  # fmt: skip
        if said == _NO_ROW:
            raise IndexError(f"there are {len(q)} laws beside, not {law.tolist()[:16]}")
        return Beside(p, other, ids, place)

    def _find(
        self,
        logits: Float[Tensor, "U V"],
        at: Int[Tensor, "R"],
        heat: Sequence[float],
        top_p: Sequence[float],
        min_p: Sequence[float],
        best: Int[Tensor, "U"] | None,
    ) -> tuple[Int[Tensor, "R"], int]:
        """How many tokens each row has, and all together; less than none where a row is no law. They wait to be read."""
        rows, vocab = len(at), logits.shape[1]
        whole = all(x is None or x.dtype == torch.int64 for x in (at, best))
        if logits.dtype != torch.float32 or not whole or not rows == len(heat) == len(top_p) == len(min_p):
            raise TypeError(
                f"kernels read float32 logits, int64 rows and one option for each of {rows} rows; these are {logits.dtype}, "
                f"{at.dtype} and {len(heat)}, {len(top_p)}, {len(min_p)}"
            )
        best = None if best is None else best.contiguous()
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        at = at.contiguous()
        count = torch.empty(rows, dtype=torch.int64)
        options = (c_float * rows)(*heat), (c_double * rows)(*top_p), (c_float * rows)(*min_p)
        total: int = self.library.calls.draftwood_nucleus(
            logits.data_ptr(), len(logits), logits.stride(0), at.data_ptr(), rows, vocab, *options,
            None if best is None else best.data_ptr(), count.data_ptr(),
        )  # fmt: skip
        if total == _NO_ROW:
            raise IndexError(f"there are {len(logits)} rows of logits, not {at.tolist()[:16]}")
        return count, total

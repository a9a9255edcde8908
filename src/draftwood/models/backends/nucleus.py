"""The tokens that sampling leaves, found by the kernels: the same distributions as stock operations make, up to rounding."""

from ctypes import c_double, c_float
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.sampling.support import Beside, Few, Uncut
from draftwood.kernels.cpu.library import Library

_NO_ROW = -2  # said by the kernel


@dataclass(frozen=True, slots=True, eq=False)
class Nucleus:
    """A `Cutter`: the kernels of one level."""

    library: Library

    def __call__(self, x: Uncut) -> Few | None:
        count, total = self._find(x)
        if total < 0:
            return None
        prob, ids = torch.empty(total), torch.empty(total, dtype=torch.int64)
        self.library.calls.draftwood_nucleus_read(len(count), prob.data_ptr(), ids.data_ptr())
        return Few(prob, ids, count, x.logits.shape[1])

    def beside(
        self, x: Uncut, tokens: Int[Tensor, "R C"], q: Float[Tensor, "L V"], probs: Int[Tensor, "R"]
    ) -> Beside | None:
        count, total = self._find(x)
        if total < 0:
            return None
        (rows, children), most = tokens.shape, max(1, int(count.max()) if len(count) else 0)
        p, other = torch.empty(2, rows, most + children + 1, dtype=torch.float64)
        ids, place = torch.empty(p.shape, dtype=torch.int64), torch.empty_like(tokens)
        said: int = self.library.calls.draftwood_beside(
            rows, x.logits.shape[1], most, children, tokens.data_ptr(), q.data_ptr(), len(q), probs.data_ptr(),
            *(each.data_ptr() for each in (p, other, ids, place)),
        )  # fmt: skip
        if said == _NO_ROW:
            raise IndexError(f"there are {len(q)} distributions beside, not {probs.tolist()[:16]}")
        return Beside(p, other, ids, place)

    def _find(self, x: Uncut) -> tuple[Int[Tensor, "R"], int]:
        """How many tokens each row has, and all together; less than none where a row is no distribution. They wait to be read."""
        rows, vocab_size = len(x.at), x.logits.shape[1]
        whole = all(each is None or each.dtype == torch.int64 for each in (x.at, x.best))
        if (
            x.logits.dtype != torch.float32
            or not whole
            or not rows == len(x.temperature) == len(x.top_p) == len(x.min_p)
        ):
            raise TypeError(
                f"kernels read float32 logits, int64 rows and one option for each of {rows} rows; these are "
                f"{x.logits.dtype}, {x.at.dtype} and {len(x.temperature)}, {len(x.top_p)}, {len(x.min_p)}"
            )
        at, best = x.at.contiguous(), None if x.best is None else x.best.contiguous()
        logits = x.logits if x.logits.stride(1) == 1 else x.logits.contiguous()
        count = torch.empty(rows, dtype=torch.int64)
        options = (c_float * rows)(*x.temperature), (c_double * rows)(*x.top_p), (c_float * rows)(*x.min_p)
        total: int = self.library.calls.draftwood_nucleus(
            logits.data_ptr(), len(logits), logits.stride(0), at.data_ptr(), rows, vocab_size, *options,
            None if best is None else best.data_ptr(), count.data_ptr(),
        )  # fmt: skip
        if total == _NO_ROW:
            raise IndexError(f"there are {len(logits)} rows of logits, not {at.tolist()[:16]}")
        return count, total

"""The tokens that sampling leaves, found by the kernels: the same laws as stock operations make, up to rounding."""

from collections.abc import Sequence
from ctypes import c_double, c_float

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.support import Few
from draftwood.kernels.cpu.library import Library

_NO_ROW = -2  # said by the kernel


def nucleus(
    library: Library,
    logits: Float[Tensor, "U V"],
    at: Int[Tensor, "R"],
    heat: Sequence[float],
    top_p: Sequence[float],
    min_p: Sequence[float],
    best: Int[Tensor, "U"] | None = None,
) -> Few | None:
    """Of these rows of logits, each with options of its own; heat 0 leaves the best token. None: a row is no law."""
    rows, vocab = len(at), logits.shape[1]
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    at = at.contiguous()
    count = torch.empty(rows, dtype=torch.int64)
    options = (c_float * rows)(*heat), (c_double * rows)(*top_p), (c_float * rows)(*min_p)
    total: int = library.calls.draftwood_nucleus(
        logits.data_ptr(), len(logits), logits.stride(0), at.data_ptr(), rows, vocab, *options,
        None if best is None else best.data_ptr(), count.data_ptr(),
    )  # fmt: skip
    if total == _NO_ROW:
        raise IndexError(f"there are {len(logits)} rows of logits, not {at.tolist()[:16]}")
    if total < 0:
        return None
    prob, ids = torch.empty(total), torch.empty(total, dtype=torch.int64)
    library.calls.draftwood_nucleus_read(rows, prob.data_ptr(), ids.data_ptr())
    return Few(prob, ids, count, vocab)

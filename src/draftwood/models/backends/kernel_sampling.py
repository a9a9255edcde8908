"""Sampling by the kernels: the same distributions and picks as stock operations make, up to rounding."""

from collections.abc import Sequence
from ctypes import c_double, c_float, c_int64
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.sampling.draft_probs import Aligned, DraftProbs
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.probs import TokenProbs
from draftwood.kernels.cpu.library import Library

_OUT_OF_RANGE = -2  # returned by the kernels


@dataclass(frozen=True, slots=True, eq=False)
class Nucleus:
    """`SamplingKernels` of one instruction set."""

    library: Library

    def probs(
        self,
        logits: Float[Tensor, "U V"],
        at: Int[Tensor, "R"],
        params: Sequence[SamplingParams],
        best: Int[Tensor, "U"] | None = None,
    ) -> TokenProbs | None:
        count, total = self._find(_Given.of(logits, at, params, best))
        if total < 0:
            return None
        prob, ids = torch.empty(total), torch.empty(total, dtype=torch.int64)
        self.library.calls.draftwood_nucleus_read(len(count), prob.data_ptr(), ids.data_ptr())
        return TokenProbs(prob, logits.shape[1], ids, count)

    def aligned(
        self,
        logits: Float[Tensor, "U V"],
        at: Int[Tensor, "R"],
        params: Sequence[SamplingParams],
        best: Int[Tensor, "U"] | None,
        tokens: Int[Tensor, "R C"],
        q: Float[Tensor, "L V"],
        q_index: Int[Tensor, "R"],
    ) -> Aligned | None:
        count, total = self._find(_Given.of(logits, at, params, best))
        if total < 0:
            return None
        (size, asked), most, vocab_size = tokens.shape, max(1, int(count.max()) if len(count) else 0), logits.shape[1]
        p, other = torch.empty(2, size, most + asked + 1, dtype=torch.float64)
        ids, columns = torch.empty(p.shape, dtype=torch.int64), torch.empty_like(tokens)
        said: int = self.library.calls.draftwood_beside(
            size, vocab_size, most, asked, tokens.data_ptr(), q.data_ptr(), len(q), q_index.data_ptr(),
            *(each.data_ptr() for each in (p, other, ids, columns)),
        )  # fmt: skip
        if said == _OUT_OF_RANGE:
            raise IndexError(f"there are {len(q)} draft distributions, not {q_index.tolist()[:16]}")
        return Aligned(TokenProbs(p, vocab_size, ids), TokenProbs(other, vocab_size, ids), columns)

    def pick(
        self,
        logits: Float[Tensor, "U V"],
        at: Int[Tensor, "R"],
        params: Sequence[SamplingParams],
        best: Int[Tensor, "U"] | None,
        u: Float[Tensor, "R 3"],
    ) -> Int[Tensor, "R"]:
        given, token = _Given.of(logits, at, params, best), torch.empty(at.shape[0], dtype=torch.int64)
        uniforms = u.contiguous()
        if u.shape != (at.shape[0], 3) or u.dtype != torch.float64:
            raise TypeError(
                f"a pick takes three float64 uniforms for each of {len(at)}, not {u.dtype} {tuple(u.shape)}"
            )
        if self.library.calls.draftwood_pick(*given.arguments, uniforms.data_ptr(), token.data_ptr()):
            raise given.out_of_range()
        return token

    def block_chances(
        self,
        logits: Float[Tensor, "U V"],
        at: list[int],
        temperature: float,
        q: DraftProbs,
        q_index: list[int],
        tokens: list[int],
    ) -> tuple[list[float], list[float]] | None:
        held, (count, width) = _DrawnFrom.of(q), (len(tokens), q.prob.shape[1])
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        rows, index, drawn = ((c_int64 * count)(*each) for each in (at, q_index, tokens))
        w, chance = (c_double * (count + 1))(), (c_double * count)()
        said: int = self.library.calls.draftwood_block(
            logits.data_ptr(), len(logits), logits.stride(0), rows, count, logits.shape[1], temperature,
            held.prob.data_ptr(), len(held.prob), width, held.address, index, drawn, w, chance,
        )  # fmt: skip
        if said == _OUT_OF_RANGE:
            raise IndexError(
                f"no such chain: rows {at} of {len(logits)}, {q_index} of {len(held.prob)}, tokens {tokens}"
            )
        return None if said else (list(w), list(chance))

    def pick_left(
        self,
        logits: Float[Tensor, "U V"],
        at: int,
        temperature: float,
        w: float,
        q: DraftProbs,
        q_index: int,
        u: Float[Tensor, "3"],
    ) -> int:
        held, row, uniforms = _DrawnFrom.of(q), logits[at].contiguous(), u.contiguous()
        token: int = self.library.calls.draftwood_left(
            row.data_ptr(), row.shape[0], temperature, w, held.prob[q_index].data_ptr(), held.prob.shape[1], held.address,
            uniforms.data_ptr(),
        )  # fmt: skip
        return token

    def _find(self, given: "_Given") -> tuple[Int[Tensor, "R"], int]:
        """How many tokens each distribution has, and all together; -1 where a row is none. They wait to be read."""
        count = torch.empty(given.tensors[1].shape[0], dtype=torch.int64)
        total: int = self.library.calls.draftwood_nucleus(*given.arguments, count.data_ptr())
        if total == _OUT_OF_RANGE:
            raise given.out_of_range()
        return count, total


@dataclass(frozen=True, slots=True, eq=False)
class _DrawnFrom:
    """Draft distributions as the kernels read them: float32, over rising ids or the whole vocabulary."""

    prob: Float[Tensor, "R W"]
    ids: Int[Tensor, "W"] | None

    @staticmethod
    def of(q: DraftProbs) -> "_DrawnFrom":
        return _DrawnFrom(q.prob.contiguous(), None if q.ids is None else q.ids.contiguous())

    @property
    def address(self) -> int | None:
        return None if self.ids is None else self.ids.data_ptr()


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """Logits and options as the kernels read them."""

    tensors: tuple[Tensor, Tensor, Tensor | None]  # held as long as their addresses are used
    arguments: tuple[Any, ...]

    @staticmethod
    def of(
        logits: Float[Tensor, "U V"],
        at: Int[Tensor, "R"],
        params: Sequence[SamplingParams],
        best: Int[Tensor, "U"] | None,
    ) -> "_Given":
        size = at.shape[0]
        whole = all(each is None or each.dtype == torch.int64 for each in (at, best))
        if logits.dtype != torch.float32 or not whole or size != len(params):
            raise TypeError(
                f"kernels read float32 logits, int64 places and one set of options for each of {size}; "
                f"these are {logits.dtype}, {at.dtype} and {len(params)}"
            )
        at, best = at.contiguous(), None if best is None else best.contiguous()
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        options = (
            (c_float * size)(*(0.0 if p.greedy else p.temperature for p in params)),
            (c_double * size)(*(p.top_p for p in params)),
            (c_float * size)(*(p.min_p for p in params)),
        )
        arguments = (
            logits.data_ptr(), len(logits), logits.stride(0), at.data_ptr(), size, logits.shape[1], *options,
            None if best is None else best.data_ptr(),
        )  # fmt: skip
        return _Given((logits, at, best), arguments)

    def out_of_range(self) -> IndexError:
        logits, at, _ = self.tensors
        return IndexError(f"there are {len(logits)} rows of logits, not {at.tolist()[:16]}")

"""The int8 decoder on stock operations, for machines without a compiler: batch-invariant, but slower than the kernels.

Each weight row and each token's activations are a step times whole numbers of two digits, x = step * (128 * high + low).
One int8 product gives the sums of all four pairs of digits as exact int32; float64 adds them exactly and rounds once.
"""

import torch
from jaxtyping import Float, Float64, Int, Int8
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.errors import ModelError
from draftwood.models.attention import visible_masks
from draftwood.models.backends.fixed_point import WIDEST_HEAD, exp_gate, exp_gelu_gate, fixed_point_attention
from draftwood.models.backends.int8_weights import Int8Weights
from draftwood.models.backends.quantised_blocks import GROUP, Packed, unpack_some
from draftwood.models.decoder import Backend, Decoder, Layer

# Digits end at 64, not at 127: processors without a dot product of bytes add two products in 16 bits, shifting one
# factor by 128, and (64 + 128) * 64 * 2 is still below 2^15. Seven bits more would saturate there and be wrong.
_DIGIT, _BASE = 64, 128
_TOP = _DIGIT * _BASE + _DIGIT
_LONGEST = 2**31 // ((_DIGIT + _BASE) * _DIGIT)  # columns whose sum fits into int32
_SHORT = 2**31 // (_TOP * _DIGIT)  # columns whose sum with both digits of the weights does
_LEAST = 2.0**-100  # rows of zeros need a step too
_PART = 4096  # weight rows at a time, so that intermediate results stay in the processor's cache
_SUBSETS = 8  # trimmed heads kept

BACKEND = Backend(
    name="int8 stock",
    batch_invariant=True,
    attention=fixed_point_attention,
    attention_mask=lambda segments, x, cache, dtype, window: visible_masks(segments, x, dtype, window),
    gates={"silu": exp_gate, "gelu_tanh": exp_gelu_gate},
    group_attention=None,  # its products are of whole numbers in two digits and are not stacked
)


def split(x: Float[Tensor, "R K"]) -> tuple[Int8[Tensor, "2 R K"], Float64[Tensor, "R 1"]]:
    """High and low digits of every number, and the step of every row; NaN for a row that holds inf or NaN."""
    peak = x.abs().amax(-1, keepdim=True)
    step = peak.clamp_min(_LEAST).div_(_TOP).add_(peak - peak)
    whole = (x / step).round_()
    high = (whole * (1 / _BASE)).round_()
    low = whole.sub_(high, alpha=_BASE)
    return torch.stack([high, low]).to(torch.int8), step.double()


class StockLinear:
    """y = x W^T + b, with two digits for every weight. Stored in parts of equal size, padded with rows of zeros."""

    def __init__(
        self,
        digits: Int8[Tensor, "parts 2 rows K"],
        steps: Float64[Tensor, "parts rows 1"],
        size: int,
        bias: Float[Tensor, "out"] | None = None,
    ) -> None:
        if digits.shape[-1] > _LONGEST:
            raise ModelError(
                f"a product over {digits.shape[-1]} columns does not fit into int32, at most {_LONGEST} do\n"
                "hint: use dtype float32"
            )
        self.digits, self.steps, self.size, self.bias = digits, steps, size, bias
        self._parts = [(d.flatten(0, 1), s) for d, s in zip(digits, steps, strict=True)]
        self._subsets: dict[bytes, StockLinear] = {}

    @classmethod
    def from_packed(cls, *matrices: Packed, bias: Tensor | None = None) -> "StockLinear":
        """Matrices one below the other. Unpacks a part at a time, so that memory never holds a whole matrix as floats."""
        size = sum(packed.rows for packed in matrices)
        parts = -(-size // _PART)
        rows = -(-size // (parts * GROUP)) * GROUP
        digits = torch.zeros(parts, 2, rows, matrices[0].columns, dtype=torch.int8)
        steps = torch.zeros(parts, rows, 1, dtype=torch.float64)
        begin = 0  # of a matrix among all rows
        for packed in matrices:
            at, end = begin, begin + packed.rows
            while at < end:
                part, row = divmod(at, rows)
                many = min(rows - row, end - at)
                place = slice(row, row + many)
                digits[part, :, place], steps[part, place] = split(unpack_some(packed, at - begin, at - begin + many))
                at += many
            begin = end
        return cls(digits, steps, size, bias)

    def __call__(self, x: Float[Tensor, "*S in"]) -> Float[Tensor, "*S out"]:
        flat = x.reshape(-1, x.shape[-1]).float()
        total, rows = len(flat), self.steps.shape[1]
        out = torch.empty(total, self.size)
        if total:
            digits, step = split(flat)
            right, step = digits.flatten(0, 1).t(), step.t()  # [K, 2T], [1, T]
            for i, (weight, scale) in enumerate(self._parts):
                pairs = torch._int_mm(weight, right)  # type: ignore[reportPrivateImportUsage]  # [2 rows, 2T]
                pairs = pairs if len(right) <= _SHORT else pairs.long()
                both = torch.add(pairs[rows:], pairs[:rows], alpha=_BASE).double()
                y = both[:, total:].add_(both[:, :total], alpha=_BASE).mul_(scale).mul_(step)
                piece = out[:, i * rows : (i + 1) * rows]
                piece.copy_(y[: piece.shape[1]].t())
            out = out if self.bias is None else out.add_(self.bias)
        return out.view(*x.shape[:-1], self.size)

    def rows(self, x: Float[Tensor, "*S in"], ids: Int[Tensor, "W"]) -> Float[Tensor, "*S W"]:
        """Only the outputs of these rows of W. A trimmed vocabulary stays the same from call to call, so it is kept."""
        key = ids.cpu().contiguous().numpy().tobytes()
        if key not in self._subsets:
            if len(self._subsets) >= _SUBSETS:
                self._subsets.pop(next(iter(self._subsets)))
            digits, steps = self._at(ids)
            digits = digits.transpose(0, 1).contiguous()[None]
            bias = None if self.bias is None else self.bias[ids]
            self._subsets[key] = StockLinear(digits, steps[None], len(ids), bias)
        return self._subsets[key](x)

    def take(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S in"]:
        """These rows of W."""
        digits, steps = self._at(ids.reshape(-1))
        high, low = digits.double().unbind(1)
        return low.add_(high, alpha=_BASE).mul_(steps).float().view(*ids.shape, -1)

    def _at(self, ids: Int[Tensor, "W"]) -> tuple[Int8[Tensor, "W 2 K"], Float64[Tensor, "W 1"]]:
        part, row = ids // self.steps.shape[1], ids % self.steps.shape[1]
        return self.digits[part, :, row], self.steps[part, row]


class StockDecoder(Decoder):
    """The decoder over packed weights. Only the constructor differs: it chooses the backend."""

    def __init__(self, config: ModelConfig, weights: Int8Weights) -> None:
        if config.head_dim > WIDEST_HEAD:
            raise ModelError(
                f"head_dim {config.head_dim} is too large for fixed point\nhint: at most {WIDEST_HEAD}; use dtype float32"
            )
        embedding = StockLinear.from_packed(weights.embedding)
        head = embedding if weights.head is weights.embedding else StockLinear.from_packed(weights.head)
        layers: list[Layer] = []
        for i, w in enumerate(weights.layers):
            products = {name: StockLinear.from_packed(*p.parts, bias=p.bias) for name, p in w.products.items()}
            layers.append(Layer(config, i, products, w.norms, BACKEND))
        super().__init__(config, embedding, layers, weights.norm, head, BACKEND)

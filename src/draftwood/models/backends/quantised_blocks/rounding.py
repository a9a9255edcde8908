"""Floats rounded to blocks of 4 bits with a scale and a minimum, so that the squared error of every block is small."""

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.errors import WeightsError
from draftwood.models.backends.quantised_blocks.kinds import BLOCK, Kind
from draftwood.models.backends.quantised_blocks.packed import Packed, interleave

SHRINK = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)  # of the range of a block: what lies outside is cut off
REFITS = 2


def round_four_bits(weight: Float[Tensor, "rows columns"]) -> Packed:
    """From several ranges the one with the least error. In each, scale and minimum are fitted to the levels by least
    squares, and the levels chosen again."""
    columns = weight.shape[1]
    if columns % BLOCK:
        raise WeightsError(f"rows of {columns} columns cannot be cut into blocks of {BLOCK}\nhint: use dtype int8")
    x = weight.float().unflatten(1, (-1, BLOCK))
    low, high = x.amin(-1), x.amax(-1)
    best = torch.full_like(low, torch.inf)
    kept = [torch.zeros_like(low), torch.zeros_like(low)]
    for shrink in SHRINK:
        cut = (high - low) * (1 - shrink) / 2
        scale, minimum = (high - low) * shrink / 15, low + cut
        for refit in range(REFITS + 1):
            scale, minimum = scale.half().float(), minimum.half().float()
            levels = _levels(x, scale, minimum)
            error = (levels * scale[..., None] + minimum[..., None] - x).square().sum(-1)
            better = error < best
            best = torch.where(better, error, best)
            kept = [torch.where(better, new, old) for new, old in zip((scale, minimum), kept, strict=True)]
            if refit < REFITS:
                scale, minimum = _fitted(x, levels, scale)
    scale, minimum = kept
    whole = _levels(x, scale, minimum).to(torch.uint8)
    head = torch.stack([scale.half(), minimum.half()], dim=-1).view(torch.uint8)
    rows = torch.cat([head, whole[..., :16] | whole[..., 16:] << 4], dim=-1).flatten(1)
    return interleave(rows, columns, Kind.Q4_1)


def _levels(x: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    step = scale[..., None]
    return torch.where(step > 0, (x - minimum[..., None]) / step, 0.0).round_().clamp_(0, 15)


def _fitted(x: Tensor, levels: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and minimum with the least squared error for given levels; the old scale where all levels are equal."""
    level, mean = levels.mean(-1), x.mean(-1)
    away = levels - level[..., None]
    spread = away.square().sum(-1)
    fitted = torch.where(spread > 0, (away * x).sum(-1) / spread.clamp_min(1e-9), scale).clamp_min(0)
    return fitted, mean - fitted * level

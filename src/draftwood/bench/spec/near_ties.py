"""Near ties: where two texts part, was it a coin's edge or a mistake?

Passes of different sizes round differently in float32, so two equal methods may part where the two tokens are as good as
equal. At the first difference the target is asked once more: how far apart were they? Greedy: the gap of the two logits
to the best one. Sampled: at the step of the pick where the two tokens' ways part, the distance from that step's uniform
to the other one's piece of the unit interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftwood.cache.dense import DenseCache
from draftwood.core.proposal import Proposal
from draftwood.core.request import Request
from draftwood.core.review import Chain, score
from draftwood.core.round import TARGET, Round
from draftwood.core.sampling.keys import digits
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.random import split

NEAR = 3e-4


@dataclass(frozen=True, slots=True)
class Parting:
    """The first place where two texts differ."""

    position: int
    tokens: tuple[int, int]  # -1 where a text had ended
    margin: float

    @property
    def near(self) -> bool:
        return self.margin <= NEAR


def few_enough(near: int, compared: int) -> bool:
    """At most one near tie in a thousand tokens, and one in a shorter run: more of them are no ties."""
    return near * 1000 <= max(compared, 1000)


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first place where two answers differ; None if they are the same."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


@torch.inference_mode()
def parting(
    model: object, prompt: Sequence[int], a: Sequence[int], b: Sequence[int], params: SamplingParams, place: int
) -> Parting:
    """What the target says about the two tokens at `place`, after the text both answers share."""
    x = a[place] if place < len(a) else -1
    y = b[place] if place < len(b) else -1
    if min(x, y) < 0:
        return Parting(place, (x, y), float("inf"))
    request = Request(0, list(prompt), params, model.vocab_size)  # type: ignore[attr-defined]
    request.output = list(a[:place])
    known = request.known
    make = getattr(model, "make_cache", None)
    size = len(known) + 1
    cache = DenseCache(model.cache_specs, slots=1, capacity=size) if make is None else make(1, size, None)  # type: ignore[attr-defined]
    cache.admit(0, known)
    rnd = Round(torch.tensor([0]), torch.tensor([len(known)]), (request,))
    scored = score(model, cache, [Chain(0, 0, known)], Proposal.roots(rnd.roots()), rnd)  # type: ignore[arg-type]
    root = torch.zeros(1, 1, dtype=torch.int64)
    if params.greedy:
        logits = scored.logits(root)[0, 0].double()
        return Parting(place, (x, y), float(logits.max() - torch.minimum(logits[x], logits[y])))
    uniforms = digits(rnd.key(TARGET, torch.tensor([0])))[0].tolist()
    return Parting(place, (x, y), _step_margin(scored.probs(root[:, 0]).dense()[0].double(), x, y, uniforms))


def _step_margin(probs: torch.Tensor, x: int, y: int, uniforms: list[float]) -> float:
    """The margin at the first of the three steps that leads to different pieces."""
    pieces = split(probs)
    side = pieces.shape[-1]
    for u, power in zip(uniforms, (side**2, side, 1), strict=True):
        a, b = x // power % side, y // power % side
        if a != b:
            mass = pieces.flatten(1).sum(1) if pieces.ndim > 1 else pieces
            cdf = mass.cumsum(0) / mass.sum()
            return max(_outside(cdf, a, u), _outside(cdf, b, u))
        pieces = pieces[a]
    return float("inf")


def _outside(cdf: torch.Tensor, piece: int, u: float) -> float:
    """How far u lies outside a piece of the unit interval."""
    low, high = float(cdf[piece - 1]) if piece else 0.0, float(cdf[piece])
    return max(low - u, u - high, 0.0)

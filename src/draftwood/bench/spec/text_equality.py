"""Text equality: which recipes must write plain decoding's text, and whether a difference is a near tie.

Passes of different sizes round differently in floats, so two correct methods may choose different tokens where both are
almost equally good. At the first difference the target is evaluated once more. Greedy: the margin is the gap from the
best logit to the lower of the two tokens' logits. Sampled: the margin is the distance from the uniform number to the
interval of the other token, at the first step of the draw where the two tokens differ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import zip_longest
from typing import Any, get_args, get_type_hints

import torch

from draftwood import recipes
from draftwood.core.host import put
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import TARGET, Round
from draftwood.core.sampling.keys import digits
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.random import split
from draftwood.core.score import KnownTokens, score
from draftwood.verifiers.match import Match

NEAR = 3e-4  # margin of a near tie in float32
EVERY = 1000  # tokens among which one near tie is no sign of an error
# A 16-bit number has few digits: logits around 20 are an eighth apart in bfloat16, and every pass rounds differently. There
# the margin of greedy tokens counts in steps between neighbouring numbers, and ties come more often.
STEPS, COARSE_NEAR, COARSE_EVERY = 4, 0.05, 100


def tokens_per_tie(precision: str) -> int:
    """Tokens among which one near tie is no sign of an error, by the name of the number format."""
    return COARSE_EVERY if "float16" in precision else EVERY


def following(name: str, temperature: float) -> dict[str, Any]:
    """Options under which a recipe's samples are plain decoding's own. Empty where the recipe offers no such rule, or
    where the name chooses a rule itself: verifier=rejection."""
    chosen = any(word.startswith("verifier=") for word in recipes.parted(name)[1])
    build = recipes.load(name).build
    offered = get_args(get_type_hints(build).get("verifier"))
    other = "match" in offered and signature(build).parameters["verifier"].default != "match"
    return {"verifier": "match"} if temperature > 0 and not chosen and other else {}


def not_compared(recipe: Recipe, temperature: float) -> str:
    """Why the recipe's texts may differ from plain decoding's; empty where they must be equal."""
    rule = type(recipe.verifier).__name__
    if not recipe.lossless:
        return f"{rule} is LOSSY"
    if temperature == 0 or isinstance(recipe.verifier, Match):
        return ""
    return f"{rule} uses random numbers of its own: other texts from the same distribution"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first position where two texts differ, and how close the two tokens are."""

    position: int
    tokens: tuple[int, int]  # -1 where a text has ended
    margin: float
    close: float = NEAR  # margins up to this are rounding

    @property
    def near(self) -> bool:
        return self.margin <= self.close

    def __str__(self) -> str:
        return f"token {self.position}: {self.tokens[0]} instead of {self.tokens[1]}, margin {self.margin:.1e}"


def few_enough(near: int, compared: int, every: int = EVERY) -> bool:
    """At most one near tie in so many tokens, and at most one in a shorter run."""
    return near * every <= max(compared, every)


@torch.inference_mode()
def difference(
    target: Runner, prompt: Sequence[int], a: Sequence[int], b: Sequence[int], params: SamplingParams
) -> Difference | None:
    """The first difference of two answers to a prompt, after the text that both share; None if they are equal."""
    pairs = enumerate(zip_longest(a, b, fillvalue=-1))
    place, (x, y) = next(((i, pair) for i, pair in pairs if pair[0] != pair[1]), (-1, (-1, -1)))
    if place < 0:
        return None
    if min(x, y) < 0:
        return Difference(place, (x, y), float("inf"))
    request = Request(0, list(prompt), params, target.info.vocab_size)
    request.output = list(a[:place])
    known = request.known
    runner, device = target.open(1, len(known) + 1), target.info.device
    runner.admit(0, known)
    rnd = Round(put([0], device), put([len(known)], device), (request,))
    scored = score(runner, [KnownTokens(0, 0, known)], Proposal.roots(rnd.roots()), rnd)
    root = put([[0]], device)
    kind = target.info.dtype
    if params.greedy:
        logits = scored.logits(root)[0, 0].double()
        close = NEAR if kind.itemsize > 2 else STEPS * _step(float(logits.max()), kind)
        return Difference(place, (x, y), float(logits.max() - torch.minimum(logits[x], logits[y])), close)
    uniforms = digits(rnd.key(TARGET, put([0], device)))[0].tolist()
    margin = _step_margin(scored.probs(root[:, 0]).dense()[0].double(), x, y, uniforms)
    return Difference(place, (x, y), margin, NEAR if kind.itemsize > 2 else COARSE_NEAR)


def _step(x: float, kind: torch.dtype) -> float:
    """The distance of neighbouring numbers around x."""
    return torch.finfo(kind).eps * 2.0 ** math.floor(math.log2(max(abs(x), 1.0)))


def _step_margin(probs: torch.Tensor, x: int, y: int, uniforms: list[float]) -> float:
    """The margin at the first of the three steps of a draw that leads to different pieces."""
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

"""The best acceptance any exact rule could reach with given drafts: a yardstick for rules, never part of one.

Whatever a rule does, it can keep a drafted token at most with probability

    best = 1 + min over sets H of tokens [ p(H) - Pr(all draws lie in H) ]

and some rule reaches that: it is a transport of draws onto tokens, and this its dual. A best H holds the tokens whose p/q
is lowest, so of 2^V sets only the V + 1 prefixes of one order matter. For independent draws that follows from
convexity; without replacement it is a published claim, which tests hold against all sets of small vocabularies.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.errors import OptionError, need_at_least
from draftwood.verifiers.formulas.race import CHUNK, Race

DUST = 1e-10  # tokens that draws meet with less than this probability together are left out: it would not show
ENOUGH = 1e-9  # chunks that cannot lower the minimum by more are not looked into


def best_iid(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], most: int) -> Float[Tensor, "B most"]:
    """With 1 to `most` independent draws from q."""
    p, q = distributions(p, q, most)
    p, q = _by_ratio(p, q)
    below, drawn = p.cumsum(1), q.cumsum(1).clamp_max(1.0)
    each = [(below - drawn**k).amin(1) for k in range(1, most + 1)]
    return 1 + torch.stack(each, dim=1).clamp_max(0.0)


def best_distinct(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], most: int) -> Float[Tensor, "B most"]:
    """With 1 to `most` draws without replacement, or as many as q has tokens. Right to about 1e-9."""
    p, q = distributions(p, q, most)
    return 1 + torch.stack([_distinct(*each, most) for each in zip(p, q, strict=True)]).clamp_max(0.0)


def distributions(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], k: int) -> tuple[Tensor, Tensor]:
    """Both in float64 with sum 1: float32 distributions miss it by a millionth, which is more than rules may differ by."""
    need_at_least("a bound", k=(k, 1))
    if p.shape != q.shape or p.ndim != 2 or not p.numel():
        raise OptionError(
            f"p has shape {tuple(p.shape)}, q {tuple(q.shape)}\nhint: two matrices, one distribution in each row"
        )
    p, q = p.double(), q.double()
    for name, probs in (("p", p), ("q", q)):
        if not bool(((probs >= 0).all(1) & ((probs.sum(1) - 1).abs() < 1e-3)).all()):
            raise OptionError(f"{name} has a row that is no distribution\nhint: nothing negative, a sum of 1")
    return p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)


def _by_ratio(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the order of rising p/q; tokens that q cannot draw stand last."""
    order = torch.where(q > 0, p / q, torch.inf).argsort(dim=-1, stable=True)
    return p.gather(-1, order), q.gather(-1, order)


def _distinct(p: Float[Tensor, "V"], q: Float[Tensor, "V"], most: int) -> Float[Tensor, "most"]:
    """Minima of p(H) - Q(H), one for each number of draws."""
    kept = _worth_drawing(q, most)
    p, q = p[kept], q[kept]
    p, q = _by_ratio(p, q / q.sum())
    below, draws = p.cumsum(0), min(most, len(q))
    least = [(below - q.cumsum(0)).amin()]
    if draws > 1:
        least.append((below - _pair(q)).amin())
    if draws > 2:
        least += _race(below, q, draws).unbind(0)[2:]
    # With as many draws as tokens everything is drafted, and more draws find nothing new.
    return torch.stack(least + least[-1:] * (most - draws))


def _worth_drawing(q: Float[Tensor, "V"], most: int) -> Tensor:
    """Places of the tokens that `most` draws may meet. What is left after the likeliest `most - 1` is the least mass a draw
    can choose from, so a share of DUST of it is met with `most` times that probability at most."""
    rising = q.sort()
    mass = rising.values.cumsum(0)
    choice = mass[max(len(q) - most, 0)]
    positive = (rising.values > 0) & (mass > DUST * choice)
    if int(positive.sum()) < min(most, int((q > 0).sum())):
        positive = rising.values > 0
    return rising.indices[positive]


def _pair(q: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Q of all prefixes for two draws: the sum over i in H of q(i) (q(H) - q(i)) / (1 - q(i))."""
    best = q.argmax()
    others = q.scatter(0, best, 0.0)
    # The likeliest token may leave almost nothing; what it leaves is summed, not subtracted from 1.
    odds = others / (1 - others)
    there = torch.arange(len(q)) >= best
    held = others.cumsum(0)
    first_best = torch.where(there, q[best] * held / others.sum(), 0.0)
    return first_best + q.cumsum(0) * odds.cumsum(0) - (odds * others).cumsum(0)


def _race(below: Float[Tensor, "n"], q: Float[Tensor, "n"], draws: int) -> Float[Tensor, "draws"]:
    """First the ends of chunks, then the chunks that could hold something lower.

    What makes prefixes best is that Q grows by more per mass of q the longer a prefix is. So between two ends it lies below
    their chord, and the chord says how low a chunk can be without asking for Q inside it.
    """
    race = Race(q, draws)
    edges, at_edges = race.edges, race.at_edges()
    mass, drawn = (torch.nn.functional.pad(x, (1, 0)) for x in (below, q.cumsum(0)))
    least = (mass[edges] - at_edges).amin(1)
    chunk = (torch.arange(len(q)) // CHUNK).expand(draws, -1)  # of the prefix that ends with a token
    start, end = (x.expand(draws, -1).gather(1, chunk) for x in (drawn[edges[:-1]], drawn[edges[1:]]))
    share = ((drawn[1:] - start) / (end - start)).clamp(0, 1)
    chord = torch.lerp(at_edges[:, :-1].gather(1, chunk), at_edges[:, 1:].gather(1, chunk), share)
    lowest = least.new_full((draws, race.chunks), torch.inf).scatter_reduce(1, chunk, below - chord, "amin")
    for i in lowest.amin(0).argsort().tolist():
        inner = slice(i * CHUNK + 1, int(edges[i + 1]))  # prefixes between the ends
        if inner.start < inner.stop and bool((lowest[:, i] < least - ENOUGH).any()):
            least = torch.minimum(least, (mass[inner] - race.inside(i)).amin(1))
    return least

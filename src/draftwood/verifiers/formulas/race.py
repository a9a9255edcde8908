"""How likely it is that all of several draws without replacement fall into a set, for all sets of one chain at once.

Draws without replacement are the first arrivals of a race in which token i arrives after an exponential time of rate q(i).
The first k arrivals lie in H when k tokens of H arrive before the first of the others, whose time has rate l = 1 - q(H):

    Q(H) = integral of  l exp(-l t)  Pr( sum over i in H of Bernoulli(1 - exp(-q(i) t)) >= k )  dt

The times are the same for every H, so the counts of a longer prefix follow from those of a shorter one: a product of
polynomials a + b z, cut off at z^k. In log t the integrand is smooth and dies at both ends; equal steps converge
geometrically there, faster than Gauss-Legendre nodes between 0 and 1, which would need others for every H.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

STEP = 0.3  # in log t: errors below 1e-10
BEGIN = math.log(1e-3)  # three or more arrivals before that have no chance worth counting
LATE = 28.0  # exp(-28) is nothing
CHUNK = 256  # tokens of a product, a power of two
TOGETHER = 8  # chunks multiplied at once, so that their polynomials stay in a cache

Polynomials = list[Tensor]  # coefficient 0, 1, ...; those left out are zero


class Race:
    """Prefixes of tokens in a fixed order, `q` all positive with sum 1; `most` draws at most, three at least."""

    def __init__(self, q: Float[Tensor, "n"], most: int) -> None:
        self.most, self.length = most, len(q)
        self.outside = _rest(q)  # [n + 1] of each prefix, the whole being the last
        slowest = float(self.outside[-2])
        count = math.ceil((math.log(LATE / slowest) - BEGIN) / STEP) + 1
        self.times = torch.exp(BEGIN + STEP * torch.arange(count, dtype=q.dtype))
        self.chunks = -(-len(q) // CHUNK)
        self.q = torch.nn.functional.pad(q, (0, self.chunks * CHUNK - len(q))).view(self.chunks, CHUNK)
        parts = [self._whole(self.q[i : i + TOGETHER]) for i in range(0, self.chunks, TOGETHER)]
        whole = [torch.cat([part[j] for part in parts], dim=-1) for j in range(most)]  # [G, C] each
        self.before = _shifted(scan(whole, most))

    @property
    def edges(self) -> Tensor:
        """Lengths of the prefixes that `at_edges` knows."""
        return torch.cat([torch.arange(self.chunks) * CHUNK, torch.tensor([self.length])])

    def at_edges(self) -> Float[Tensor, "most edges"]:
        """Q of the prefixes that end with a chunk, for 1 to `most` draws."""
        whole = torch.ones(self.most, 1, dtype=self.q.dtype)  # nothing is left outside: certain
        return torch.cat([self._integral(self.before, self.outside[self.edges[:-1]]), whole], dim=1)

    def inside(self, chunk: int) -> Float[Tensor, "most tokens"]:
        """Q of the prefixes that end within a chunk, its last token left out: that one is an edge."""
        first = chunk * CHUNK
        last = min(first + CHUNK, self.length) - 1
        own = scan(self._single(self.q[chunk, : last - first]), self.most)  # [G, tokens]
        before = [c[:, chunk, None] for c in self.before]
        return self._integral(multiply(before, own, self.most), self.outside[first + 1 : last + 1])

    def _single(self, q: Float[Tensor, "*S"]) -> Polynomials:
        """Chances that a token has not arrived and that it has, by time and token."""
        away = torch.exp(-q * self.times.view(-1, *[1] * q.ndim))
        return [away, 1 - away]

    def _whole(self, q: Float[Tensor, "c tokens"]) -> Polynomials:
        """Arrivals of each chunk, by time: pairs, pairs of pairs, and so on."""
        made = self._single(q)
        while made[0].shape[-1] > 1:
            made = multiply([c[..., ::2] for c in made], [c[..., 1::2] for c in made], self.most)
        made = [c[..., 0] for c in made]
        return made + [torch.zeros_like(made[0])] * (self.most - len(made))

    def _integral(self, counts: Polynomials, outside: Float[Tensor, "m"]) -> Float[Tensor, "most m"]:
        rate = outside * self.times[:, None]  # [G, m]
        weight = STEP * rate * torch.exp(-rate)
        full = [*counts, *[torch.zeros_like(counts[0])] * (self.most - len(counts))]
        fewer = torch.stack(full).cumsum(0)  # Pr(fewer than k arrivals), k = 1 ... most
        return ((1 - fewer) * weight).sum(1)


def multiply(x: Polynomials, y: Polynomials, most: int) -> Polynomials:
    """Products, cut off at z^most. All coefficients are probabilities, so nothing cancels."""
    product: Polynomials = []
    for degree in range(min(len(x) + len(y) - 1, most)):
        terms = [(i, degree - i) for i in range(len(x)) if 0 <= degree - i < len(y)]
        total = x[terms[0][0]] * y[terms[0][1]]
        for i, j in terms[1:]:
            total.addcmul_(x[i], y[j])
        product.append(total)
    return product


def scan(each: Polynomials, most: int) -> Polynomials:
    """Running products along the last axis, in log2 of its length steps."""
    done, reach, length = each, 1, each[0].shape[-1]
    while reach < length:
        later = multiply([c[..., reach:] for c in done], [c[..., :-reach] for c in done], most)
        done = done + [torch.zeros_like(done[0])] * (len(later) - len(done))
        done = [torch.cat([c[..., :reach], x], dim=-1) for c, x in zip(done, later, strict=True)]
        reach *= 2
    return done


def _shifted(running: Polynomials) -> Polynomials:
    """Before each chunk instead of after it: nothing has arrived before the first."""
    return [torch.cat([torch.full_like(c[:, :1], float(j == 0)), c[:, :-1]], dim=1) for j, c in enumerate(running)]


def _rest(q: Float[Tensor, "n"]) -> Float[Tensor, "m"]:
    """Mass behind each prefix, summed from the far end: 1 - q(H) would lose small ones."""
    return torch.nn.functional.pad(q.flip(0).cumsum(0).flip(0), (0, 1))

"""From logits to a distribution: the one road, for target and draft alike, row by row and order-free.

Truncations keep every token at or above a threshold value, so ties never depend on the order in which a sort saw them,
and a row's distribution never depends on its neighbours. Nothing sorts the vocabulary.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core import host
from draftwood.core.host import put
from draftwood.core.sampling import support
from draftwood.core.sampling.params import SamplingParams


class Shaping:
    """The sampling options of B rows as tensors, made once per round."""

    def __init__(self, params: Sequence[SamplingParams], device: torch.device | str) -> None:
        self.params = tuple(params)
        self.device = device
        self.max_top_k = max((p.top_k for p in params), default=0)
        self.any_top_p = any(p.top_p < 1 for p in params)
        self.any_min_p = any(p.min_p > 0 for p in params)
        self.any_greedy = any(p.greedy for p in params)
        self.all_greedy = all(p.greedy for p in params)
        self.even = all(p.greedy or p.temperature == 1 for p in params)
        # Whether every distribution has few tokens, and they are cheap to find.
        few = all(p.greedy or p.top_k or p.top_p < 1 or p.min_p > 0 for p in params)
        self.few = few and host.on_host(device)
        # Rows whose distribution a backend's kernels can make. A row's own options decide, never its neighbours'.
        self.short = [p.greedy or (not p.top_k and (p.top_p < 1 or p.min_p > 0)) for p in params]

    def column(self, name: str, dtype: torch.dtype) -> Tensor:
        """One option of all rows."""
        return put([getattr(p, name) for p in self.params], self.device, dtype)

    def temperature(self) -> list[float] | None:
        """What a ranked distribution divides its logits by, row by row, where that is all there is to it."""
        if self.max_top_k or self.any_top_p or self.any_min_p:
            return None
        return [1.0 if p.greedy else p.temperature for p in self.params]

    def probs(
        self, logits: Float[Tensor, "B K W"], ranked: bool = False, cut: support.Cut | None = None
    ) -> Float[Tensor, "B K W"]:
        """Probabilities after temperature and truncation; greedy rows become one-hot. At least float32.

        `ranked`: greedy rows keep the probabilities of temperature 1, for whoever asks which token is the second best.
        `cut`: who makes the distributions of short rows, if not stock operations; they differ in the last bits.
        """
        x = logits if logits.dtype == torch.float64 else logits.float()
        if self.all_greedy and not ranked:
            return _one_hot(x)
        if cut is not None and any(self.short):
            return self._probs_by(cut, x)
        prob = self._cut(x)
        if self.any_top_p:
            prob = _top_p(prob, self.column("top_p", torch.float64))
        greedy = self.column("greedy", torch.bool)[:, None, None]
        return torch.where(greedy, _one_hot(x), prob) if self.any_greedy and not ranked else prob

    def _probs_by(self, cut: support.Cut, x: Float[Tensor, "B K W"]) -> Float[Tensor, "B K W"]:
        rows = [b for b, short in enumerate(self.short) if short]
        others = [b for b, short in enumerate(self.short) if not short]
        each = x.shape[1]
        at = (put(rows, x.device)[:, None] * each + torch.arange(each, device=x.device)).flatten()
        few = cut(self.uncut(x.flatten(0, 1), at, [b for b in rows for _ in range(each)]))
        if few is None:
            return self.probs(x)
        probs = torch.empty_like(x)
        probs[rows] = few.dense().view(len(rows), *x.shape[1:])
        if others:
            probs[others] = self.take(others).probs(x[others])
        return probs

    def uncut(
        self,
        logits: Float[Tensor, "U W"],
        at: Int[Tensor, "R"],
        rows: Sequence[int],
        best: Int[Tensor, "U"] | None = None,
    ) -> support.Uncut:
        """Rows of logits with their options; `rows`: whose they are, all of them short."""
        params = [self.params[b] for b in rows]
        temperature = [0.0 if p.greedy else p.temperature for p in params]
        return support.Uncut(logits, at, temperature, [p.top_p for p in params], [p.min_p for p in params], best)

    def support(self, logits: Float[Tensor, "B W"], cut: support.Cut | None = None) -> support.Few | None:
        """The same distributions, one per row, over the tokens they leave. None where a row is no distribution."""
        x = logits if logits.dtype == torch.float64 else logits.float()
        if cut is not None:
            probs = self.probs(x[:, None], cut=cut)[:, 0]
            return support.likeliest(probs, torch.ones(len(probs), dtype=torch.float64))
        prob = self._cut(x[:, None])[:, 0] if not self.all_greedy else _one_hot(x)
        goal = self.column("top_p", torch.float64)
        if self.any_greedy and not self.all_greedy:
            greedy = self.column("greedy", torch.bool)
            prob = torch.where(greedy[:, None], _one_hot(x), prob)
        return support.likeliest(prob, goal)

    def take(self, rows: Sequence[int]) -> "Shaping":
        """The options of some rows, which may come several times."""
        return self if rows == list(range(len(self.params))) else Shaping([self.params[b] for b in rows], self.device)

    def _cut(self, x: Float[Tensor, "B K W"]) -> Float[Tensor, "B K W"]:
        """Probabilities before top-p."""
        if self.even and not self.any_min_p and not self.max_top_k:
            return torch.softmax(x, dim=-1)
        temperature = self.column("temperature", x.dtype)[:, None, None]
        greedy = self.greedy()[:, None, None]
        # The best logit becomes 0 first, so that no temperature, however small, makes infinities that cancel.
        scaled = (x - x.amax(-1, keepdim=True)) / torch.where(greedy, torch.ones_like(temperature), temperature)
        if self.any_min_p:
            floor = self.column("min_p", x.dtype)[:, None, None]
            scaled = scaled.masked_fill(scaled < floor.log(), -torch.inf)
        if self.max_top_k:
            scaled = self._top_k(scaled)
        return torch.softmax(scaled, dim=-1)

    def greedy(self) -> Bool[Tensor, "B"]:
        return self.column("greedy", torch.bool)

    def certain(self, probs: Float[Tensor, "B *S W"]) -> Float[Tensor, "B *S W"]:
        """Distributions of which greedy rows take the best token and nothing else. A distribution of zeros stays one."""
        if not self.any_greedy:
            return probs
        sure = self.greedy().view(-1, *[1] * (probs.ndim - 1)) & (probs > 0).any(-1, keepdim=True)
        return torch.where(sure, _one_hot(probs), probs)

    def _top_k(self, x: Float[Tensor, "B K W"]) -> Float[Tensor, "B K W"]:
        width = x.shape[-1]
        best = top(x, min(self.max_top_k, width))[0]
        keep = [min(p.top_k or width, width) for p in self.params]
        at = torch.tensor(keep, device=x.device).clamp_max(best.shape[-1]) - 1
        floor = best.gather(-1, at[:, None, None].expand(-1, x.shape[1], 1))
        off = torch.tensor([p.top_k == 0 for p in self.params], device=x.device)[:, None, None]
        return x.masked_fill((x < floor) & ~off, -torch.inf)


def top(prob: Float[Tensor, "*S W"], k: int) -> tuple[Float[Tensor, "*S k"], Int[Tensor, "*S k"]]:
    """The k greatest of each row in falling order, and their columns.

    On a CPU a search of the whole row is slow, so columns are dealt into groups: the k greatest lie in the k groups with
    the greatest heads, and only those are searched. Four to eight times faster at ten of 8,192 or 49,152.
    """
    width = prob.shape[-1]
    size = 16 if width < 32768 else 32
    if prob.device.type != "cpu" or width < 64 * k or width < 2048:
        whole = prob.topk(k, dim=-1)
        return whole.values, whole.indices
    if width % size:
        prob = torch.nn.functional.pad(prob, (0, size - width % size), value=-torch.inf)
    groups = prob.view(*prob.shape[:-1], size, -1)  # column c is in group c mod G
    head = groups.amax(-2).topk(k, dim=-1).indices
    found = groups.gather(-1, head[..., None, :].expand(*head.shape[:-1], size, k)).flatten(-2)
    best = found.topk(k, dim=-1)
    at = best.indices
    return best.values, head.gather(-1, at % k) + at // k * groups.shape[-1]


def _one_hot(x: Float[Tensor, "*S W"]) -> Float[Tensor, "*S W"]:
    return torch.zeros_like(x).scatter_(-1, x.argmax(-1, keepdim=True), 1.0)


def _top_p(prob: Float[Tensor, "B K W"], top_p: Float[Tensor, "B"]) -> Float[Tensor, "B K W"]:
    """Keep the most probable tokens until their mass reaches top_p, ties included, and renormalise."""
    width = prob.shape[-1]
    if host.on_host(prob.device) and prob.numel():
        few = support.likeliest(prob.reshape(-1, width), top_p[:, None].expand(prob.shape[:2]).reshape(-1))
        if few is not None:
            return few.dense().view(prob.shape)
    goal = top_p[:, None, None]
    on = goal < 1
    size = min(256, width)
    while True:
        best = prob.topk(size, dim=-1).values
        mass = best.cumsum(-1, dtype=torch.float64)
        if size == width or bool(((mass[..., -1:] >= goal) | ~on).all()):
            break
        size = min(size * 4, width)
    reached: Int[Tensor, "B K"] = (mass < goal).sum(-1).clamp_max(size - 1)
    floor = best.gather(-1, reached[..., None])
    kept = prob.masked_fill((prob < floor) & on, 0.0)
    return kept / torch.where(on, kept.sum(-1, keepdim=True), torch.ones_like(floor))

"""Drafts whose distributions all come from one pass: those below a node follow from its depth, whatever the path to it.

root ─┬ a ─┬ c      a, b: of the first distribution, c, d, e: of the second one
      │    └ d
      └ b ── e
"""

from collections.abc import Callable, Sequence
from time import perf_counter

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.host import put
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree

Rank = Callable[[Float[Tensor, "U W"], list[float]], tuple[Float[Tensor, "U k"], Int[Tensor, "U k"]]]
"""(logits, temperature of each) -> the most probable tokens that matter, and their probabilities."""


class ByPosition:
    """One round's draft in the making. `run`: the pass, made when the first distribution is asked for; it gives `ahead`
    logits of each of the sequences `drafted`. `temperature`, `rank`: for policies that read the best tokens alone."""

    def __init__(
        self,
        rnd: Round,
        drafted: Sequence[int],
        ahead: int,
        run: Callable[[], Float[Tensor, "U W"]],
        ids: Int[Tensor, "W"] | None,
        *,
        ranked: bool,
        temperature: list[float] | None = None,
        rank: Rank | None = None,
    ) -> None:
        self.rnd, self.drafted, self.ahead, self.ids, self.ranked = rnd, drafted, ahead, ids, ranked
        self._run, self._temperature, self._rank = run, temperature, rank
        self._first: Tensor | None = None  # [B 1] row of the logits that is a sequence's first, -1: it is not drafted
        self._logits = torch.zeros(0)
        self._best: tuple[Tensor, Tensor] | None = None
        self.seconds = 0.0

    @property
    def ran(self) -> bool:
        return self._first is not None

    def step(self, tree: TokenTree, frontier: Int[Tensor, "B F"]) -> tuple[DraftProbs, None]:
        started = perf_counter()
        if self._first is None:
            self._begin(tree)
        assert self._first is not None
        depth = tree.depths().gather(1, frontier.clamp_min(0))
        none = (frontier < 0) | (depth >= self.ahead) | (self._first < 0)
        rows = torch.where(none, 0, self._first + depth)
        if self._best is not None:
            prob, tokens = (x.index_select(0, rows.flatten()) for x in self._best)
            found = DraftProbs(prob.masked_fill(none.flatten()[:, None], 0.0), tokens)
        else:
            logits = self._logits.index_select(0, rows.flatten()).view(*rows.shape, -1)
            probs = self.rnd.probs(logits, tree, frontier.clamp_min(0), self.ids, ranked=self.ranked)
            found = DraftProbs(probs.masked_fill(none[..., None], 0.0).flatten(0, 1), self.ids)
        self.seconds += perf_counter() - started
        return found, None

    def _begin(self, tree: TokenTree) -> None:
        self._logits = self._run()
        if self._temperature is not None and self._rank is not None:
            each = [self._temperature[b] for b in self.drafted for _ in range(self.ahead)]
            self._best = self._rank(self._logits, each)
        first = [-1] * tree.batch
        for i, b in enumerate(self.drafted):
            first[b] = i * self.ahead
        self._first = put(first, tree.tokens.device)[:, None]

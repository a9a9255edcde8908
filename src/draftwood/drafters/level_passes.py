"""LevelPasses: drafting by one pass over each level of a growing tree, for models that read tokens and caches alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import ALL, ForwardInput, LayerPlan
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Runner, TreePolicy
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.score import KnownTokens, assemble
from draftwood.core.tree import TokenTree
from draftwood.drafters.levels import levels_of, rows_at
from draftwood.trees.grow import grow

Logits = Callable[[ForwardInput, int], tuple[Float[Tensor, "U W"], Float[Tensor, "U H"]]]
"""(pass, its number from 0) -> logits where it wants them, and the hidden states they come from."""


class LevelPasses:
    """The passes of one draft. `chains`: what the first one runs of each sequence, the root last; `ids`: tokens of the
    logits' columns."""

    def __init__(
        self, chains: Sequence[KnownTokens], rnd: Round, limit: Limit, ids: Int[Tensor, "W"] | None, logits: Logits
    ) -> None:
        self.chains, self.rnd, self.limit, self.ids, self._logits = list(chains), rnd, limit, ids, logits
        self.levels = levels_of(chains, rnd.device)

    def grow(self, base: Proposal, policy: TreePolicy) -> Proposal:
        root, passes, seconds = base.tree.resize(1), 0, 0.0

        def step(tree: TokenTree, frontier: Int[Tensor, "B F"]) -> tuple[DraftProbs, Float[Tensor, "B F H"] | None]:
            nonlocal passes, seconds
            started = perf_counter()
            if passes:
                level = self.levels.step(tree, frontier)
                x, places = level.x, level.places
            else:
                x, places = assemble(self.chains, root)[0], list(range(len(self.chains)))
            logits, hidden = (
                rows_at(found, places, frontier.numel()).view(*frontier.shape, -1) for found in self._logits(x, passes)
            )
            passes += 1
            seconds += perf_counter() - started
            probs = self.rnd.probs(logits, tree, frontier.clamp_min(0), self.ids, ranked=policy.draw.ranked)
            return DraftProbs(probs.flatten(0, 1), self.ids), hidden if self.limit.watches else None

        return replace(grow(base, self.limit, policy, self.rnd, step), pass_seconds=seconds)


def wanted_logits(
    runner: Runner, x: ForwardInput, rows: Int[Tensor, "W"] | None, layers: LayerPlan = ALL
) -> tuple[Float[Tensor, "U W"], Float[Tensor, "U H"]]:
    """Logits where a pass wants them, of these rows of the head (None: all), and the hidden states they come from."""
    if rows is None:
        output = runner.execute(x, layers=layers)
        logits = output.logits
        if logits.shape[0] > 1:  # copying a single distribution would wake all threads
            # index_select: indexing in brackets takes many times as long for a few long rows.
            logits = logits.index_select(0, output.logits_index.index_select(0, x.want))
        return logits, output.hidden.index_select(0, x.want)
    hidden = runner.execute(replace(x, want=x.want[:0]), layers=layers).hidden[x.want]
    return runner.head(hidden, ids=rows), hidden

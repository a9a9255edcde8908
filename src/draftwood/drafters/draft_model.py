"""DraftModel: a smaller model writes the guess token by token, through the one growing loop.

It has a cache of its own, which follows the texts of the requests. It can also review what others draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import ForwardInput, ForwardOutput, Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit, always
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Runner, TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.score import assemble
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Outcome
from draftwood.drafters.features import MARGIN
from draftwood.drafters.levels import levels_of, rows_at
from draftwood.drafters.review import Reviews
from draftwood.drafters.text_cache import TextCache
from draftwood.trees.grow import grow


@dataclass(frozen=True, slots=True, eq=False)
class DraftModel:
    """`model` drafts, with a cache of its own. `ids`: token of each row of the model's head where it covers less than the
    vocabulary."""

    model: Runner
    ids: Int[Tensor, "W"] | None = None
    needs: Needs = Needs(trims=True)
    draws: frozenset[Draw] = frozenset(Draw)

    def init(self, slots: int) -> TextCache:
        return TextCache(self.model.open(slots, self.model.info.max_positions + MARGIN))

    def admit(self, state: Any, slot: int, request: Request) -> int:
        return request.num_known

    def begin(self, state: TextCache, rnd: Round, output: ForwardOutput) -> None:
        state.catch_up(rnd)

    def propose(self, state: TextCache, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        rows, ids = self.columns(rnd)
        if ids is not None and not len(ids):
            return base
        chains = state.chains(rnd)
        # At most: a level's frontier is never wider than the budget.
        staged = min(limit.tier.depth * limit.tier.nodes, MARGIN)
        state.runner.reserve([c.slot for c in chains], [len(c.tokens) + staged for c in chains])
        levels, root, passes, seconds = levels_of(chains, rnd.device), base.tree.resize(1), 0, 0.0

        def step(tree: TokenTree, frontier: Int[Tensor, "B F"]) -> tuple[DraftProbs, Float[Tensor, "B F H"] | None]:
            nonlocal passes, seconds
            started = perf_counter()
            if passes:
                level = levels.step(tree, frontier)
                x, places = level.x, level.places
            else:
                x, places = assemble(chains, root)[0], list(range(len(chains)))
            logits, hidden = (
                rows_at(found, places, frontier.numel()).view(*frontier.shape, -1)
                for found in self.logits(state, x, rows)
            )
            passes += 1
            seconds += perf_counter() - started
            probs = rnd.probs(logits, tree, frontier.clamp_min(0), ids, ranked=policy.draw.ranked)
            return DraftProbs(probs.flatten(0, 1), ids), None if limit.proceed is always else hidden

        proposal = grow(base, limit, policy, rnd, step)
        # On an accelerator no entries of nodes are known here: accepted tokens are run again in the next first pass.
        state.stage(chains, levels.children)
        return replace(proposal, pass_seconds=seconds)

    def columns(self, rnd: Round) -> tuple[Int[Tensor, "W"] | None, Int[Tensor, "W"] | None]:
        """(rows of the model's head to multiply, their tokens); None: all."""
        if self.ids is None or rnd.columns is None:
            return rnd.columns, self.ids if rnd.columns is None else rnd.columns
        rows = torch.isin(self.ids, rnd.columns).nonzero()[:, 0]
        return rows, self.ids[rows]

    def logits(
        self, state: TextCache, x: ForwardInput, rows: Int[Tensor, "W"] | None
    ) -> tuple[Float[Tensor, "U W"], Float[Tensor, "U H"]]:
        """Logits where the pass wants them, of these rows of the head, and the hidden states they come from."""
        if rows is None:
            output = state.runner.execute(x)
            logits = output.logits
            if logits.shape[0] > 1:  # copying a single distribution would wake all threads
                # index_select: indexing in brackets takes many times as long for a few long rows.
                logits = logits.index_select(0, output.logits_index.index_select(0, x.want))
            return logits, output.hidden.index_select(0, x.want)
        hidden = state.runner.execute(replace(x, want=x.want[:0])).hidden[x.want]
        return state.runner.head(hidden, ids=rows), hidden

    def reviews(self, state: TextCache, rnd: Round, limit: Limit, lenience: float) -> Reviews:
        """The round's reviews of what others draft."""
        return Reviews(self, state, rnd, limit, lenience)

    def commit(self, state: TextCache, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        state.keep(rnd, outcome)

    def free(self, state: TextCache, slots: Sequence[int]) -> None:
        state.free(slots)

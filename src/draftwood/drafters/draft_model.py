"""DraftModel: a smaller model writes the guess token by token, through the one growing loop.

It has a cache of its own, which follows the texts of the requests. It can also review what others draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import ALL, ForwardInput, ForwardOutput, LayerPlan, Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Runner, TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.drafters.level_passes import LevelPasses, wanted_logits
from draftwood.drafters.on_features.feature_text import MARGIN
from draftwood.drafters.review import Reviews
from draftwood.drafters.text_cache import TextCache


@dataclass(frozen=True, slots=True, eq=False)
class DraftModel:
    """`model` drafts, with a cache of its own. `ids`: token of each row of the model's head where it covers less than the
    vocabulary. `plan`: how its layers run over guesses; known text is always run as the whole model runs it."""

    model: Runner
    ids: Int[Tensor, "W"] | None = None
    plan: LayerPlan = ALL
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
        passes = LevelPasses(chains, rnd, limit, ids, lambda x, level: self.logits(state, x, rows, level))
        proposal = passes.grow(base, policy)
        # On an accelerator no entries of nodes are known here: accepted tokens are run again in the next first pass. So are
        # those of a plan, whose entries are not what the whole model would write.
        state.stage(chains, passes.levels.children if self.plan == ALL else [{} for _ in chains])
        return proposal

    def columns(self, rnd: Round) -> tuple[Int[Tensor, "W"] | None, Int[Tensor, "W"] | None]:
        """(rows of the model's head to multiply, their tokens); None: all."""
        if self.ids is None or rnd.columns is None:
            return rnd.columns, self.ids if rnd.columns is None else rnd.columns
        rows = torch.isin(self.ids, rnd.columns).nonzero()[:, 0]
        return rows, self.ids[rows]

    def logits(
        self, state: TextCache, x: ForwardInput, rows: Int[Tensor, "W"] | None, level: int = 0
    ) -> tuple[Float[Tensor, "U W"], Float[Tensor, "U H"]]:
        """Logits where the pass wants them, of these rows of the head, and the hidden states they come from. `level`: of the
        draft; 0 is known text."""
        return wanted_logits(state.runner, x, rows, self.plan if level else ALL)

    def reviews(self, state: TextCache, rnd: Round, limit: Limit, lenience: float) -> Reviews:
        """The round's reviews of what others draft."""
        return Reviews(self, state, rnd, limit, lenience)

    def commit(self, state: TextCache, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        state.keep(rnd, outcome)

    def free(self, state: TextCache, slots: Sequence[int]) -> None:
        state.free(slots)

"""SkippedLayers: the target drafts for itself, with some of its sub-layers left out.

    draft    root ─> a ─> b     in the target's own cache, behind the entries of the whole target's text
    verify   root, a, b         all layers, in the same entries: what the draft wrote there is written over

A sub-layer that is left out adds nothing to the residual, and attention that is left out reads and writes no entry. Nothing
is kept between rounds, and nothing beside the target is loaded.
"""

from dataclasses import dataclass
from typing import Any

from draftwood.core.forward import LayerPlan, Needs
from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.round import Round
from draftwood.core.score import KnownTokens
from draftwood.drafters.layers.skip_set import SkipSet
from draftwood.drafters.level_passes import LevelPasses, wanted_logits
from draftwood.drafters.stateless import Stateless
from draftwood.errors import DrafterError


@dataclass(frozen=True, slots=True)
class SkippedLayers(Stateless):
    """Nodes that get children are run, in entries behind the text; near the end of a slot a tree has fewer levels."""

    skip: SkipSet
    needs: Needs = Needs(borrow=True, trims=True)
    draws: frozenset[Draw] = frozenset(Draw)

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        target, plan, rows = rnd.target, self.plan, rnd.columns
        if target is None:
            raise DrafterError("SkippedLayers runs layers of the target, and the round has none")
        if base.tree.num_nodes > 1 or (rows is not None and not len(rows)):
            return base  # what follows a draft is not known yet
        beam = 1 if policy.shape is Shape.CHAIN else policy.max_frontier(limit) or limit.tier.nodes
        room = [(target.capacity - length) // beam for length in rnd.host_lengths]
        if any(most < deep for most, deep in zip(room, limit.depths, strict=True)):
            limit = limit.at_most(room, limit.budgets)
        each = zip(rnd.host_slots, rnd.host_lengths, rnd.requests, strict=True)
        chains = [KnownTokens(slot, length - 1, [request.root]) for slot, length, request in each]
        passes = LevelPasses(chains, rnd, limit, rows, lambda x, _: wanted_logits(target, x, rows, plan))
        return passes.grow(base, policy)

    @property
    def plan(self) -> LayerPlan:
        return LayerPlan(skip_attention=self.skip.attention, skip_mlp=self.skip.mlp)

"""EarlyExit: the target drafts with its own first layers and a small net behind them; its other layers verify.

    draft    token ─ layers [0, l) ─ h ─ net ─ head ─ next token        one such step for each drafted token
    verify                           h ─ layers [l, L) ─ head           one pass over all of them, the root included

Layers [0, l) of drafted tokens are run once: their hidden states and cache entries are those of the target's pass. The net
has entries of its own, for text alone: those of drafted tokens are dropped every round, and made again for the accepted
ones, from the same hidden states.
"""

from dataclasses import dataclass, replace

from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import Needs
from draftwood.core.host import put
from draftwood.core.legal_draws import Shape
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.round import Round
from draftwood.core.score import KnownTokens
from draftwood.core.tree import TokenTree
from draftwood.drafters.layers.first_layers import FirstLayers
from draftwood.drafters.levels import Level
from draftwood.drafters.on_features.feature_draft import Draft
from draftwood.drafters.on_features.feature_text import FeatureText, TextState
from draftwood.errors import DrafterError
from draftwood.trees.grow import grow


@dataclass(frozen=True, slots=True, eq=False)
class EarlyExit(FeatureText):
    """`model` reads the hidden state after `layers` layers, and ignores tokens."""

    @property
    def layers(self) -> int:
        return self.model.taps[0]

    @property
    def needs(self) -> Needs:
        return Needs(taps=frozenset(self.model.taps), borrow=True, trims=True)

    def propose(self, state: TextState, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        if rnd.target is None:
            raise DrafterError("EarlyExit runs layers of the target, and the round has none")
        ready = self.ready(state, rnd, limit)
        if ready is None or base.tree.num_nodes > 1:
            return base  # what follows a draft is not known yet
        counts, only = ready
        some = [b for b, slot in enumerate(rnd.host_slots) if slot in counts]
        if len(some) < rnd.batch:  # texts before their first pass are not drafted; the others' layers are run again
            part = self.propose(state, rnd.take(some), base.take(put(some, rnd.device)), limit.take(some), policy)
            return replace(part, started=None).scatter(some, base)
        beam = 1 if policy.shape is Shape.CHAIN else policy.max_frontier(limit) or limit.tier.nodes
        room = [(rnd.target.capacity - length) // beam for length in rnd.host_lengths]
        if any(most < deep for most, deep in zip(room, limit.depths, strict=True)):
            limit = limit.at_most(room, limit.budgets)
        first = FirstLayers(rnd.target, rnd, self.layers)

        def reads(level: Level, tree: TokenTree, frontier: Int[Tensor, "B F"]) -> Float[Tensor, "T H"]:
            hidden = first.at(tree, frontier).flatten(0, 1)
            return hidden if len(level.places) == len(hidden) else hidden[put(level.places, hidden.device)]

        # The net's own entries hold text before the root, so its first pass runs the root too.
        chain = self.chains(state, counts, roots=first.upto(base.tree)[:, :1])
        known = [KnownTokens(k.slot, k.done, [*k.tokens, 0]) for k in self.known(state, rnd, counts) if k is not None]
        draft = Draft(state.runner, rnd, chain, known, policy.draw.ranked, None, 0, only, reads)
        grown = grow(base, limit, policy, rnd, draft.step)
        if draft.outputs is None:  # nothing may be drafted
            return base
        self.keep_pairs(state, counts)
        return replace(grown, pass_seconds=draft.seconds, started=first.started(grown.tree))

"""Features: a head that reads the target's features drafts token by token, through the one growing loop.

known   x0 x1 x2 x3      root x3
output    f0 f1 f2         pairs (f0,x1) (f1,x2) (f2,x3): the last one's output guesses x4
"""

from dataclasses import dataclass, replace

from draftwood.core.forward import Needs
from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.round import Round
from draftwood.drafters.on_features.feature_draft import Draft, chain_in_one_call, drawn_in_one_call, listed_chain
from draftwood.drafters.on_features.feature_text import FeatureText, TextState
from draftwood.drafters.retrieval.retrieved import Listed
from draftwood.trees.grow import grow


@dataclass(frozen=True, slots=True, eq=False)
class Features(FeatureText):
    """`model` runs the head."""

    @property
    def needs(self) -> Needs:
        return Needs(taps=frozenset(self.model.taps), trims=True)

    def propose(self, state: TextState, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        ready = self.ready(state, rnd, limit)
        if ready is None:
            return base
        counts, only = ready
        # A model ranks faster than its logits become distributions. A limit that watches wants to see those whole.
        reads = None if limit.watches else policy.reads(limit)
        most, temperature = (0, None) if reads is None else (reads, rnd.temperature())
        chain, known = self.chains(state, counts), self.known(state, rnd, counts)
        proposal, kept = None, list(counts.values())
        k = beside(rnd, limit, policy)
        divisor = rnd.temperature() if k else None
        if divisor and len(counts) == rnd.batch:
            proposal = chain_in_one_call(state.runner, base, limit, chain, divisor, only, k)
        elif policy.shape is Shape.CHAIN and policy.draw is Draw.IID and not limit.watches and not limit.least:
            proposal = drawn_in_one_call(state.runner, base, limit, chain, rnd, only)
        if proposal is None:
            draft = Draft(state.runner, rnd, chain, known, policy.draw.ranked, temperature, most, only)
            grown = grow(base, limit, policy, rnd, draft.step)
            proposal = replace(grown, pass_seconds=draft.seconds)
            kept = kept if draft.outputs is not None else [0] * len(counts)
        self.keep_pairs(state, dict(zip(counts, kept, strict=True)))
        return proposal

    def listed(self, state: TextState, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Listed | None:
        """The same draft as lists, for a drafter on the host that chooses among its nodes; None: it can only be proposed."""
        k = beside(rnd, limit, policy)
        divisor = rnd.temperature() if k else None
        ready = self.ready(state, rnd, limit) if divisor else None
        if not divisor or ready is None or len(ready[0]) < rnd.batch:
            return None
        counts, only = ready
        found = listed_chain(state.runner, base, limit, self.chains(state, counts), divisor, only, k)
        if found is not None:
            self.keep_pairs(state, counts)
        return found


def beside(rnd: Round, limit: Limit, policy: TreePolicy) -> int:
    """Tokens of each level, where the draft is a chain of best tokens with the next best beside it; 0: it is not."""
    reads = None if limit.watches else policy.reads(limit)
    if reads and policy.max_frontier(limit) == 1:
        return reads
    return 1 if _best_tokens_alone(policy, rnd, limit) else 0


def _best_tokens_alone(policy: TreePolicy, rnd: Round, limit: Limit) -> bool:
    """Whether the policy grows a chain of best tokens: greedy requests draw nothing, so a drawn chain is one, and all
    independent paths are the same one. Every rule accepts a given token if the target emits it."""
    drawn = policy.shape in (Shape.CHAIN, Shape.PATHS) and policy.draw is not Draw.GIVEN
    return drawn and not limit.watches and all(request.params.greedy for request in rnd.requests)

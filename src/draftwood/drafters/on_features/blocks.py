"""Blocks: a net that reads the target's features guesses all tokens of a block in one pass.

    known   x0 x1 x2 x3      root x3
    pass    c0 c1 c2 | x3 m1 m2 m3      the target's features of the text, of which only new ones are run; the block
    tree                a1 a2 a3        of the distributions at m1, m2, m3

The entries of a block are dropped every round: those of text come from the target's features alone.
"""

from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from draftwood.core.forward import ForwardInput, Needs
from draftwood.core.host import put
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.round import Round
from draftwood.drafters.nets.runners.block_runner import BlockModel
from draftwood.drafters.on_features.by_position import ByPosition
from draftwood.drafters.on_features.feature_draft import chain_in_one_call, listed_chain
from draftwood.drafters.on_features.feature_text import FeatureText, TextState
from draftwood.drafters.on_features.features import beside
from draftwood.drafters.retrieval.retrieved import Listed
from draftwood.trees.grow import grow


@dataclass(frozen=True, slots=True, eq=False)
class Blocks(FeatureText):
    """`model` runs the net. Nodes deeper than its block get no children."""

    model: BlockModel

    @property
    def needs(self) -> Needs:
        return Needs(taps=frozenset(self.model.taps), trims=True)

    def propose(self, state: TextState, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        ready = self.ready(state, rnd, limit, self.model.ahead + 1)
        if ready is None:
            return base
        counts, only = ready
        ahead = self._ahead(limit)
        # A model ranks faster than its logits become distributions. A limit that watches wants to see those whole.
        reads, temperature = None if limit.watches else policy.reads(limit), rnd.temperature()
        k = beside(rnd, limit, policy)
        if k and temperature and len(counts) == rnd.batch:
            block = self._block(state, rnd, counts, ahead)
            proposal = chain_in_one_call(state.runner, base, limit, block, temperature, only, k)
            if proposal is not None:
                self.keep_pairs(state, counts)
                return proposal

        def run() -> Float[Tensor, "U W"]:
            return state.runner.execute(self._block(state, rnd, counts, ahead), only)[1]

        def rank(logits: Tensor, temperature: list[float]) -> tuple[Tensor, Tensor]:
            return state.runner.ranked(logits, temperature, min(reads or 1, logits.shape[1]), only)

        draft = ByPosition(
            rnd,
            [b for b, slot in enumerate(rnd.host_slots) if slot in counts],
            ahead,
            run,
            self.model.ids if only is None else only,
            ranked=policy.draw.ranked,
            temperature=None if reads is None else temperature,
            rank=rank,
        )
        grown = grow(base, limit, policy, rnd, draft.step)
        self.keep_pairs(state, counts if draft.ran else dict.fromkeys(counts, 0))
        return replace(grown, pass_seconds=draft.seconds)

    def listed(self, state: TextState, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Listed | None:
        """The same draft as lists, for a drafter on the host that chooses among its nodes; None: it can only be proposed."""
        k = beside(rnd, limit, policy)
        temperature = rnd.temperature() if k else None
        ready = self.ready(state, rnd, limit, self.model.ahead + 1) if temperature else None
        if not temperature or ready is None or len(ready[0]) < rnd.batch:
            return None
        counts, only = ready
        block = self._block(state, rnd, counts, self._ahead(limit))
        found = listed_chain(state.runner, base, limit, block, temperature, only, k)
        if found is not None:
            self.keep_pairs(state, counts)
        return found

    def _ahead(self, limit: Limit) -> int:
        """Places of the block whose distributions may be asked for: the head rows of others are not multiplied."""
        return max(1, min(self.model.ahead, limit.tier.depth, limit.tier.nodes - 1))

    def _block(self, state: TextState, rnd: Round, counts: dict[int, int], ahead: int) -> ForwardInput:
        roots = put([state.slots[slot].owner.root for slot in counts], rnd.device)
        return self.chains(state, counts, roots=self.model.enter(roots), ahead=ahead)

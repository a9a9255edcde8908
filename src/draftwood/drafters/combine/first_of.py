"""FirstOf: for each sequence the first drafter that has a draft."""

from dataclasses import dataclass
from typing import Any

from draftwood.core.host import put
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Drafter, TreePolicy
from draftwood.core.round import Round
from draftwood.drafters.combine.several import Several, with_source
from draftwood.drafters.retrieval.retrieved import NOTHING, Retrieved, Retriever, as_given, columns


@dataclass(frozen=True, slots=True, eq=False)
class FirstOf(Several):
    """Retrievers are asked in turn, and `last` where none of them has found anything. What a retriever finds is known on the
    host, so nothing is read from a device. Nodes are given: of what is found none is drawn."""

    retrievers: tuple[Retriever, ...]
    last: Drafter | None = None
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    @property
    def drafters(self) -> tuple[Drafter, ...]:
        return self.retrievers if self.last is None else (*self.retrievers, self.last)

    def propose(self, state: list[Any], rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        if base.tree.num_nodes > 1 or rnd.in_flight:
            return base  # what follows a draft is not known yet
        found: list[Retrieved] = [NOTHING] * rnd.batch
        source = [0] * rnd.batch
        for i, (each, own) in enumerate(zip(self.retrievers, state, strict=False)):
            open_ = [b for b in range(rnd.batch) if not found[b].tokens]
            if not open_:
                break
            for b, one in zip(open_, each.retrieve(own, _part(rnd, open_), limit.take(open_)), strict=True):
                found[b], source[b] = one, i
        given = as_given(base, found, columns(found, rnd, limit), source)
        left = [b for b in range(rnd.batch) if not found[b].tokens]
        if self.last is None or not left:
            return given
        own_base = base if len(left) == rnd.batch else base.take(put(left, rnd.device))
        made = self.last.propose(state[-1], _part(rnd, left), own_base, limit.take(left), policy)
        return with_source(made, len(self.retrievers)).scatter(left, given)


def _part(rnd: Round, sequences: list[int]) -> Round:
    return rnd if len(sequences) == rnd.batch else rnd.take(sequences)

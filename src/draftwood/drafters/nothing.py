"""Nothing: the drafter that never guesses. With it the engine is a plain decoder."""

from dataclasses import dataclass

from draftwood.core.forward import Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.round import Round
from draftwood.drafters.stateless import Stateless


@dataclass(frozen=True, slots=True)
class Nothing(Stateless):
    """Proposes the base as it is."""

    needs: Needs = Needs()
    draws: frozenset[Draw] = frozenset(Draw)

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        return base

"""VocabTrim: a drafter that guesses among some tokens only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor

from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Drafter, TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.errors import CompositionError, OptionError


@dataclass(frozen=True, slots=True, eq=False)
class VocabTrim:
    """A drafter that guesses among the tokens `keep` alone, so that its head has fewer rows to multiply.

    q is a distribution over `keep` and zero elsewhere, and rules take it as such. A token outside is never guessed but
    emitted as before: p is not changed. None keeps all.

    Wraps drafters whose needs say `trims`: they multiply only the LM-head rows of `rnd.columns` and return distributions
    over them. Ids rise, as in the whole vocabulary: guesses that share the target's uniform rely on the order.
    """

    drafter: Drafter
    keep: Int[Tensor, "W"] | None

    def __post_init__(self) -> None:
        if not self.drafter.needs.trims:
            name = type(self.drafter).__name__
            raise CompositionError(
                f"VocabTrim trims the head of a drafter, {name} has none that it could trim\n"
                "hint: a drafter with a head, for example inner=eagle3"
            )
        keep = self.keep
        if keep is not None and (not len(keep) or bool((keep.diff() <= 0).any())):
            raise OptionError("VocabTrim: ids to keep must rise, and there must be one at least")

    @property
    def needs(self) -> Needs:
        return self.drafter.needs

    @property
    def draws(self) -> frozenset[Draw]:
        return self.drafter.draws

    def init(self, slots: int) -> Any:
        return self.drafter.init(slots)

    def admit(self, state: Any, slot: int, request: Request) -> int:
        return self.drafter.admit(state, slot, request)

    def begin(self, state: Any, rnd: Round, output: ForwardOutput) -> None:
        self.drafter.begin(state, rnd, output)

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        trimmed = rnd if self.keep is None else rnd.trimmed(self.keep)
        return self.drafter.propose(state, trimmed, base, limit, policy)

    def commit(self, state: Any, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        self.drafter.commit(state, rnd, outcome, output)

    def free(self, state: Any, slots: Sequence[int]) -> None:
        self.drafter.free(state, slots)

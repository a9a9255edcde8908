"""For drafters that choose by cost: seconds of a round, retrieved nodes that pay, and what rounds teach of their chances."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftwood.controllers.estimates.survival import Survival
from draftwood.core.limit import CostEstimate
from draftwood.core.round import Round
from draftwood.drafters.combine.paying import most_paying
from draftwood.drafters.retrieval.retrieved import NOTHING, Retrieved

REFRESH = 16  # rounds after which costs are looked up again


@dataclass(slots=True)
class RoundSeconds:
    """Seconds of a round, for each of its sequences, by the sequence's nodes; 0: plain."""

    seconds: list[float] = field(default_factory=list[float])
    batch: int = 0  # that they are of
    left: int = 0  # rounds until they are looked up again
    of: CostEstimate | None = None  # whose costs they are

    def look_up(self, cost: CostEstimate, rnd: Round, most: int) -> bool:
        """Up to `most` nodes; whether they were looked up again."""
        self.left -= 1
        if self.of is cost and self.batch == rnd.batch and self.left > 0 and most < len(self.seconds):
            return False
        batch, context, rest = rnd.batch, sum(rnd.host_lengths), cost.rest_seconds()
        self.seconds = [(cost.pass_seconds(batch + batch * n, context) + rest) / batch for n in range(most + 1)]
        self.batch, self.left, self.of = batch, REFRESH, cost
        return True


def paying_nodes(
    found: Retrieved, survival: Survival, slot: int, seconds: Sequence[float], least: float
) -> tuple[Retrieved, float]:
    """The nodes with most tokens a second, if more than `least`, and that rate."""
    alive: list[float] = []
    for parent, estimate in zip(found.parents, found.chances(), strict=True):
        alive.append(survival.chance(slot, estimate) * (alive[parent - 1] if parent else 1.0))
    count, rate = most_paying(sorted(alive, reverse=True), seconds, at_least=least)
    return (found.best(count, alive), rate) if count else (NOTHING, least)


def judge(survival: Survival, slot: int, found: Retrieved, emitted: Sequence[int]) -> None:
    """Every child of a node that was reached is judged by the token that was emitted there."""
    chances, at = found.chances(), 0
    for token in emitted:
        hit = -1
        for i, parent in enumerate(found.parents):
            if parent == at:
                survival.learn(slot, chances[i], found.tokens[i] == token)
                hit = i + 1 if found.tokens[i] == token else hit
        if hit < 0:
            break
        at = hit

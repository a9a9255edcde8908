"""A model's chain and retrieved nodes in one tree: which of both are worth a place in the pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from draftwood.drafters.combine.paying import most_paying
from draftwood.drafters.retrieval.retrieved import NOTHING, Retrieved


@dataclass(frozen=True, slots=True)
class Drafted:
    """A chain of the model, and the chance of each token, given that those before it are accepted."""

    tokens: list[int]
    chances: list[float]

    def alive(self) -> list[float]:
        """The chance of each token that it is accepted together with those before it."""
        found: list[float] = []
        for chance in self.chances:
            found.append(chance * (found[-1] if found else 1.0))
        return found


@dataclass(frozen=True, slots=True)
class Fused:
    """The first `chain` tokens of the chain, and the retrieved nodes beside them, with those above them that the chain has
    too."""

    chain: int
    found: Retrieved


def beside_unseen(found: Retrieved, accepted: float, seconds: Sequence[float], draft: float) -> Retrieved:
    """The retrieved nodes that pay beside a draft nobody has looked at, of which so many tokens are expected to be accepted.
    `seconds`: of a round with the draft and some of these nodes, from none on. Half of their chance counts, because the
    model may have drafted the same tokens."""
    alive = sorted((0.5 * exp(x) for x in found.score), reverse=True)
    tokens = 1 + accepted
    count = most_paying(alive, seconds, tokens=tokens, draft=draft, at_least=tokens / (seconds[0] + draft)).count
    return found.best(count) if count else NOTHING


def fused(
    drafted: Drafted, found: Retrieved, chances: Sequence[float], seconds: Sequence[float], draft: float
) -> Fused:
    """As many nodes of both as pay. `chances` of retrieved nodes, given their parents. The model has looked at the same
    text: a retrieved token that is not the chain's gets at most the chance that the chain leaves beside its own token."""
    alive = drafted.alive()
    above = [1.0, *alive]
    same = [0]  # by node of `found`, the root first: the place in the chain with the same path, -1 if there is none
    own = [1.0]  # the chance that it is accepted together with all nodes above it
    for token, parent, chance in zip(found.tokens, found.parents, chances, strict=True):
        at = same[parent]
        inside = 0 <= at < len(drafted.tokens)
        if inside and drafted.tokens[at] == token:
            same.append(at + 1)
            own.append(above[at + 1])
            continue
        left = 1 - drafted.chances[at] if inside else 1.0
        same.append(-1)
        own.append(own[parent] * min(chance, left))
    new = [i for i in range(1, len(same)) if same[i] < 0]
    order = sorted([(-x, i, True) for i, x in enumerate(alive, 1)] + [(-own[i], i, False) for i in new])
    count = most_paying([-x for x, _, _ in order], seconds, draft=draft, at_least=1 / (seconds[0] + draft)).count
    chain = max((i for _, i, mine in order[:count] if mine), default=0)
    kept = {i for _, i, mine in order[:count] if not mine}
    if not kept:
        return Fused(chain, NOTHING)
    for i in sorted(kept):
        while found.parents[i - 1] and found.parents[i - 1] not in kept:
            kept.add(i := found.parents[i - 1])
    return Fused(chain, found.only(sorted(kept)))

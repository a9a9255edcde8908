"""A model's nodes and retrieved ones in one tree: which of both are worth a place in the pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from draftwood.drafters.combine.paying import most_paying
from draftwood.drafters.retrieval.retrieved import NOTHING, Retrieved

_LEAST = 1e-30  # a chance whose logarithm is still a number


@dataclass(frozen=True, slots=True)
class Drafted:
    """Nodes of the model as a tree below the root, numbered as those of `Retrieved`: node i has number i + 1, parents stand
    before their children, siblings in falling order."""

    tokens: list[int]
    parents: list[int]
    said: list[float]  # the chance of each node, given its parent, as the model says
    chances: list[float]  # and as corrected by what was accepted so far
    ranks: list[int]  # how many siblings stand before it
    levels: int  # drafted, also where fewer are kept

    def alive(self) -> list[float]:
        """The chance of each node that it is accepted together with all nodes above it; 1 for the root, which is first."""
        found = [1.0]
        for parent, chance in zip(self.parents, self.chances, strict=True):
            found.append(chance * found[parent])
        return found

    def nodes(self) -> "zip[tuple[int, int, float]]":
        """Token, parent and corrected chance of each."""
        return zip(self.tokens, self.parents, self.chances, strict=True)

    def only(self, nodes: Sequence[int]) -> "Drafted":
        """These nodes, in rising order and with their parents, renumbered."""
        number = {0: 0} | {old: new for new, old in enumerate(nodes, 1)}
        return Drafted(
            [self.tokens[i - 1] for i in nodes],
            [number[self.parents[i - 1]] for i in nodes],
            [self.said[i - 1] for i in nodes],
            [self.chances[i - 1] for i in nodes],
            [self.ranks[i - 1] for i in nodes],
            self.levels,
        )

    def places(self) -> dict[tuple[int, int], int]:
        """Nodes by parent and token."""
        return {(p, t): i for i, (p, t) in enumerate(zip(self.parents, self.tokens, strict=True), 1)}


@dataclass(frozen=True, slots=True)
class Fused:
    """Nodes of the model, and the retrieved nodes beside them, with those above them that the model has too."""

    drafted: Drafted
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
    text: a retrieved token that it has not drafted gets at most the chance that its own tokens leave there."""
    alive, new, own = drafted.alive(), list[int](), [1.0]
    if found.tokens:
        own, new = _beside(drafted, alive, found, chances)
    order = sorted([(-x, i, True) for i, x in enumerate(alive[1:], 1)] + [(-own[i], i, False) for i in new])
    count = most_paying([-x for x, _, _ in order], seconds, draft=draft, at_least=1 / (seconds[0] + draft)).count
    mine = sorted(i for _, i, ours in order[:count] if ours)
    kept = {i for _, i, ours in order[:count] if not ours}
    for i in sorted(kept):
        while found.parents[i - 1] and found.parents[i - 1] not in kept:
            kept.add(i := found.parents[i - 1])
    return Fused(drafted.only(mine), found.only(sorted(kept)) if kept else NOTHING)


def _beside(
    drafted: Drafted, alive: list[float], found: Retrieved, chances: Sequence[float]
) -> tuple[list[float], list[int]]:
    """The chance of each retrieved node that it is accepted together with all nodes above it, the root first; and the nodes
    whose path the model has not drafted."""
    places, taken = drafted.places(), [0.0] * len(alive)
    for parent, chance in zip(drafted.parents, drafted.chances, strict=True):
        taken[parent] += chance
    same, own = [0], [1.0]  # by node of `found`: the node of the model with the same path, -1 if there is none
    for token, parent, chance in zip(found.tokens, found.parents, chances, strict=True):
        at = same[parent]
        same.append(places.get((at, token), -1) if at >= 0 else -1)
        left = 1.0 if at < 0 else max(1 - taken[at], 0.0)
        own.append(alive[same[-1]] if same[-1] >= 0 else own[parent] * min(chance, left))
    return own, [i for i in range(1, len(same)) if same[i] < 0]


def joined(
    drafted: Drafted, found: Retrieved, sources: tuple[int, int]
) -> tuple[list[int], list[int], list[float], list[int]]:
    """Both as one tree: tokens, parents, scores and sources of its nodes. A path that both have is the model's.
    `sources`: of the model, and of the retriever."""
    tokens, parents, places = list(drafted.tokens), list(drafted.parents), drafted.places()
    score = [0.0, *(log(max(x, _LEAST)) for x in drafted.alive()[1:])]
    source = [sources[0]] * len(tokens)
    number = [0]
    for token, above, rank in zip(found.tokens, found.parents, found.score, strict=True):
        parent = number[above]
        if (parent, token) not in places:
            tokens.append(token)
            parents.append(parent)
            score.append(min(rank, score[parent]))  # never above the node it stands below
            source.append(sources[1])
            places[parent, token] = len(tokens)
        number.append(places[parent, token])
    return tokens, parents, score[1:], source

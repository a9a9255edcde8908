"""Phrases and probes below one root as a tree: what begins alike shares its nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

from draftwood.core.tree import PROBE, SCORED
from draftwood.drafters.phrases.phrases import Phrase
from draftwood.drafters.retrieval.retrieved import Retrieved

FIRST, LATER = (
    0.35,
    0.6,
)  # chance of a phrase's first token, and of each further one, until rounds have taught better ones
FADE = 0.5  # weight of a phrase beside the next newer one
BEHIND = -100.0  # scores of probes: any cut by score takes them first


@dataclass(slots=True)
class PhraseTree:
    """Nodes below one root, as lists; the root is number 0."""

    tokens: list[int]
    parents: list[int]
    score: list[float]
    role: list[int]

    @staticmethod
    def of(found: Retrieved) -> "PhraseTree":
        return PhraseTree([*found.tokens], [*found.parents], [*found.score], [SCORED] * len(found.tokens))

    def add_probes(self, branches: Sequence[Sequence[int]]) -> None:
        """Each branch from the root down. Nodes that are there already are shared: they see the same text."""
        child = {(parent, token): i for i, (parent, token) in enumerate(zip(self.parents, self.tokens, strict=True), 1)}
        for branch in branches:
            at = 0
            for deep, token in enumerate(branch):
                if (at, token) not in child:
                    self.tokens.append(token)
                    self.parents.append(at)
                    self.score.append(BEHIND - deep)
                    self.role.append(PROBE)
                    child[at, token] = len(self.tokens)
                at = child[at, token]


def merged(phrases: Sequence[Phrase]) -> Retrieved:
    """Phrases behind one token as a tree, the newest first; each has FADE times the weight of the one before it, and chances
    are shared by weight."""
    tokens: list[int] = []
    parents: list[int] = []
    weight = [0.0]
    child: dict[tuple[int, int], int] = {}
    for rank, phrase in enumerate(phrases):
        at = 0
        weight[0] += FADE**rank
        for token in phrase:
            if (at, token) not in child:
                tokens.append(token)
                parents.append(at)
                weight.append(0.0)
                child[at, token] = len(tokens)
            at = child[at, token]
            weight[at] += FADE**rank
    score = [0.0]
    for i, parent in enumerate(parents, 1):
        score.append(score[parent] + log((LATER if parent else FIRST) * weight[i] / weight[parent]))
    return Retrieved(tokens, parents, score[1:])


def end_of(child: Mapping[tuple[int, int], int], branch: Sequence[int]) -> int:
    """The node at the end of a branch, -1 if it is not there."""
    at = 0
    for token in branch:
        at = child.get((at, token), -1)
    return at

"""Continuations of several places in a text as one tree: tokens that places share are drafted once.

    place 1   a b c        root ── a ── b ── c
    place 2   a b d                     └─── d

The chance of a token is that of a copy after so many agreeing tokens. Where places disagree, it is shared by weight.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftwood.drafters.retrieval.retrieved import NOTHING, Retrieved


@dataclass(frozen=True, slots=True)
class Place:
    """Tokens that follow at one place. `match`: how many tokens before it agree with the end of the text."""

    tokens: Sequence[int]
    weight: float
    match: int


@dataclass(slots=True)
class _Node:
    token: int
    parent: int
    depth: int
    weight: float = 0.0
    match: int = 0  # the longest agreement among the places that lead here
    score: float = 0.0


def merge(places: Sequence[Place], nodes: int, log_chance: Callable[[int], float]) -> Retrieved:
    """The best `nodes` of all continuations, parents first. `log_chance`: of the token behind so many agreeing ones; each
    copied token adds one to them."""
    if not places:
        return NOTHING
    trie = [_Node(-1, -1, 0)]
    where: dict[tuple[int, int], int] = {}
    for place in places:
        at = 0
        trie[0].weight += place.weight
        for token in place.tokens:
            if (at, token) not in where:
                where[at, token] = len(trie)
                trie.append(_Node(token, at, trie[at].depth + 1))
            at = where[at, token]
            trie[at].weight += place.weight
            trie[at].match = max(trie[at].match, place.match)
    for node in trie[1:]:
        above = trie[node.parent]
        node.score = above.score + log_chance(node.match + node.depth - 1) + math.log(node.weight / above.weight)
    drafted = trie[1:]
    return Retrieved([n.token for n in drafted], [n.parent for n in drafted], [n.score for n in drafted]).best(nodes)

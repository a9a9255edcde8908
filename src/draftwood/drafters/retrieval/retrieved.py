"""Retrieved: continuations that a drafter found on the host, as lists. Retriever: a drafter that finds such."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Any, Protocol, runtime_checkable

from draftwood.core import host
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Drafter
from draftwood.core.round import Round


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The continuations of one sequence as a tree below its root. Node i has number i + 1, the root is 0, parents stand
    before their children. `score`: log of the estimated probability that the node is accepted, which never grows along a
    path."""

    tokens: list[int]
    parents: list[int]
    score: list[float]

    def chances(self) -> list[float]:
        """The estimated chance of each node, given that its parent is accepted."""
        above = [0.0, *self.score]
        return [exp(score - above[parent]) for score, parent in zip(self.score, self.parents, strict=True)]

    def nodes(self) -> "zip[tuple[int, int, float]]":
        """Token, parent and chance of each."""
        return zip(self.tokens, self.parents, self.chances(), strict=True)

    def best(self, nodes: int, score: Sequence[float] | None = None) -> "Retrieved":
        """The `nodes` best ones, by these scores instead of its own if given. Scores fall along a path and of equal ones the
        earlier node is taken, so no node loses its parent."""
        if len(self.tokens) <= nodes:
            return self
        by = self.score if score is None else score
        return self.only(sorted(1 + i for i in sorted(range(len(by)), key=lambda i: (-by[i], i))[:nodes]))

    def only(self, nodes: Sequence[int]) -> "Retrieved":
        """These nodes, in rising order and with their parents, renumbered."""
        number = {0: 0} | {old: new for new, old in enumerate(nodes, 1)}
        return Retrieved(
            [self.tokens[i - 1] for i in nodes],
            [number[self.parents[i - 1]] for i in nodes],
            [self.score[i - 1] for i in nodes],
        )


NOTHING = Retrieved([], [], [])


@dataclass(frozen=True, slots=True)
class Listed:
    """What a model drafted for each sequence, as lists; the passes and seconds that it took; why it broke off, if it did."""

    found: list[Retrieved]
    passes: int
    seconds: float
    fault: str | None = None

    @staticmethod
    def of(made: Proposal) -> "Listed":
        """What a proposal on the host holds."""
        tree = made.tree
        columns = (host.host(x) for x in (tree.tokens, tree.parents, tree.score, tree.live))
        return Listed(
            [_listed(*lists) for lists in zip(*columns, strict=True)], made.passes, made.pass_seconds, made.fault
        )


def _listed(tokens: list[int], parents: list[int], score: list[float], live: list[bool]) -> Retrieved:
    """The live nodes of one tree."""
    nodes = [i for i in range(1, len(tokens)) if live[i]]
    number = {0: 0} | {old: new for new, old in enumerate(nodes, 1)}
    return Retrieved([tokens[i] for i in nodes], [number[parents[i]] for i in nodes], [score[i] for i in nodes])


@runtime_checkable
class Retriever(Drafter, Protocol):
    """A drafter that runs no model: what it finds lies on the host, so that a choice can be made before it is drafted."""

    def retrieve(self, state: Any, rnd: Round, limit: Limit) -> list[Retrieved]:
        """What was found for each sequence, within its limit."""
        ...


def columns(found: Sequence[Retrieved], rnd: Round, limit: Limit) -> int:
    """Columns that a proposal of these must have at least: on an accelerator shapes follow the limit, not the text."""
    return 0 if host.on_host(rnd.device) or not any(each.tokens for each in found) else limit.tier.nodes - 1


def as_given(
    base: Proposal, found: Sequence[Retrieved], least: int = 0, source: Sequence[int] | None = None
) -> Proposal:
    """These continuations below bare roots. `least`: columns at least, where shapes must not follow the text. `source`: the
    drafter of each sequence's nodes."""
    tokens, parents, score = ([getattr(each, name) for each in found] for name in ("tokens", "parents", "score"))
    numbers = None
    if source is not None and any(source):
        numbers = [[number] * len(each) for number, each in zip(source, tokens, strict=True)]
    return base.with_given(tokens, parents, score, least=least, source=numbers)

"""Cascade: several drafters write one chain, the larger ones its beginning, and each is itself drafted for by smaller ones.

    horizontal   the largest drafter makes the first tokens, the next smaller one those behind them, a copier the last ones
    vertical     a model does not draft token by token: smaller drafters draft for it, and it reviews that in one pass

                      target
                     /      \\             counts = ((5, 10),     the model makes 5 tokens, the copier 10 behind them
               model 5      copier 10               (0, 10))     for each review the copier drafts 10 for the model
                  |
              copier 10

A model that reviews more than it was asked for keeps it. Reviews are deterministic and lenient, so nothing is known about
how a token was drawn: all nodes are given, and rules that accept given nodes are exact whatever the drafters are.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import log
from typing import Any

from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.host import host, put
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Drafter, TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.drafters.retrieval.max_gram import MaxGram
from draftwood.drafters.retrieval.retrieved import Retrieved, as_given, columns
from draftwood.drafters.review import Reviewer, Reviews
from draftwood.errors import CompositionError, OptionError
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain

_CHAIN, _BEST = Chain(Draw.GIVEN), BestFirst(1)
_log = logging.getLogger("draftwood")


@dataclass(slots=True)
class _State:
    drafters: list[Any]
    copier: Any
    calls: list[int]  # passes of each drafter so far, and copies


@dataclass(slots=True)
class _Part:
    """Tokens of one sequence, the logarithm of each one's chance, and which drafter made it."""

    tokens: list[int] = field(default_factory=list[int])
    logs: list[float] = field(default_factory=list[float])
    sources: list[int] = field(default_factory=list[int])

    def __add__(self, other: "_Part") -> "_Part":
        return _Part(self.tokens + other.tokens, self.logs + other.logs, self.sources + other.sources)


_Parts = dict[int, _Part]  # by sequence of the round


@dataclass(frozen=True, slots=True, eq=False)
class Cascade:
    """`drafters`: the largest first; all but the first must be able to review, and a first one that cannot drafts alone.
    `counts[i][j]`: tokens that drafter j + 1 makes for drafter i, 0 being the target and the last one the copier; j >= i.
    `lenience`: a reviewer accepts tokens to which it gives more than 1 / lenience."""

    drafters: tuple[Drafter, ...]
    counts: tuple[tuple[int, ...], ...]
    lenience: float = 2.0
    copier: MaxGram = field(default_factory=MaxGram)
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def __post_init__(self) -> None:
        size = len(self.drafters) + 1
        if [len(row) for row in self.counts] != [size] * size or min(map(min, self.counts)) < 0:
            raise OptionError(
                f"Cascade: {len(self.drafters)} drafters and the counts {self.counts}\n"
                f"hint: {size} rows of {size} numbers, none negative: a row for the target and each drafter, a column for "
                "each drafter and the copier"
            )
        if not self.lenience >= 1:
            raise OptionError(f"Cascade: lenience cannot be {self.lenience}\nhint: at least 1")
        for each in self.drafters[1:]:
            if not isinstance(each, Reviewer):
                raise CompositionError(
                    f"Cascade: {type(each).__name__} cannot review, so it can only be the first drafter\n"
                    "hint: DraftModel(model) reviews"
                )

    @property
    def needs(self) -> Needs:
        found = self.copier.needs
        for each in self.drafters:
            found = found | each.needs
        return replace(found, trims=False)

    def init(self, slots: int) -> _State:
        own = [each.init(slots) for each in self.drafters]
        return _State(own, self.copier.init(slots), [0] * (len(own) + 1))

    def admit(self, state: _State, slot: int, request: Request) -> int:
        each = zip(self.drafters, state.drafters, strict=True)
        return min([drafter.admit(own, slot, request) for drafter, own in each], default=request.num_known)

    def begin(self, state: _State, rnd: Round, output: ForwardOutput) -> None:
        for drafter, own in zip(self.drafters, state.drafters, strict=True):
            drafter.begin(own, rnd, output)
        self.copier.begin(state.copier, rnd, output)

    def propose(self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        if base.tree.num_nodes > 1 or rnd.in_flight:
            return base  # what follows a draft in flight is not known yet
        draft = _Draft(self, state, rnd, base, limit)
        parts = draft.made()
        found: list[Retrieved] = []
        for b in range(rnd.batch):
            tokens = parts[b].tokens
            found.append(Retrieved(tokens, list(range(len(tokens))), list(accumulate(parts[b].logs))))
        given = as_given(base, found, columns(found, rnd, limit))
        width = given.tree.num_nodes
        if width > 1:
            named = [[-1, *parts[b].sources] for b in range(rnd.batch)]
            source = put([each + [-1] * (width - len(each)) for each in named], rnd.device)
            given = replace(given, tree=replace(given.tree, source=source))
        return replace(given, passes=draft.passes, pass_seconds=draft.seconds, fault=draft.fault)

    def commit(self, state: _State, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        for drafter, own in zip(self.drafters, state.drafters, strict=True):
            drafter.commit(own, rnd, outcome, output)

    def free(self, state: _State, slots: Sequence[int]) -> None:
        for drafter, own in zip(self.drafters, state.drafters, strict=True):
            drafter.free(own, slots)
        self.copier.free(state.copier, slots)
        _log.debug("cascade: passes of each drafter and copies so far: %s", state.calls)


class _Draft:
    """One round's draft in the making."""

    def __init__(self, parts: Cascade, state: _State, rnd: Round, base: Proposal, limit: Limit) -> None:
        self.cascade, self.state, self.rnd, self.base, self.limit = parts, state, rnd, base, limit
        self.reviews: dict[int, Reviews] = {}  # by place among the drafters
        self.passes, self.seconds = 0, 0.0
        self.fault: str | None = None
        self.least = log(limit.least) if limit.least else None

    def made(self) -> _Parts:
        """What the target gets: its row of the counts, one drafter after another."""
        room = {b: min(size) for b, size in enumerate(zip(self.limit.depths, self.limit.budgets, strict=True))}
        start: _Parts = {b: _Part() for b in room}
        made = self._filled(0, start, room)
        for place, reviews in self.reviews.items():
            self.state.drafters[place].staged |= reviews.staged()
            self.state.calls[place] += reviews.passes
            self.passes += reviews.passes
            self.seconds += reviews.seconds
        return made

    def _filled(self, row: int, paths: _Parts, room: dict[int, int]) -> _Parts:
        """The draft behind each path for the drafter (or target) of this row: as many tokens of each smaller drafter as the
        counts say, at most `room` of each sequence."""
        new: _Parts = {b: _Part() for b in paths}
        goal = 0
        for column in range(row, len(self.cascade.counts)):
            goal += self.cascade.counts[row][column]
            open_ = self._open(paths, paths, new, goal, room)
            while open_:
                sofar = {b: paths[b] + new[b] for b in open_}
                left = {b: room[b] - len(new[b].tokens) for b in open_}
                got = self._appended(column, sofar, left, {b: goal - len(new[b].tokens) for b in open_})
                for b, part in got.items():
                    new[b] = new[b] + part
                open_ = self._open([b for b, part in got.items() if part.tokens], paths, new, goal, room)
        return new

    def _open(self, among: Iterable[int], paths: _Parts, new: _Parts, goal: int, room: dict[int, int]) -> list[int]:
        """Sequences that have too few tokens, if their text would not be over and their path's chance is not too small."""
        going: list[int] = []
        for b in among:
            path = paths[b] + new[b]
            likely = self.least is None or sum(path.logs) >= self.least
            if likely and len(new[b].tokens) < min(goal, room[b]) and not self.rnd.requests[b].ended_by(path.tokens):
                going.append(b)
        return going

    def _appended(self, column: int, paths: _Parts, room: dict[int, int], wanted: dict[int, int]) -> _Parts:
        """What one drafter appends to each path."""
        drafters = self.cascade.drafters
        if column == len(drafters):
            self.state.calls[column] += 1
            return {b: self._copied(b, path, min(wanted[b], room[b])) for b, path in paths.items()}
        drafter = drafters[column]
        if not isinstance(drafter, Reviewer):
            return self._alone(drafter, column, wanted, room)
        below = self._filled(column + 1, paths, {b: room[b] - 1 for b in paths})
        if column not in self.reviews:
            own = self.state.drafters[column]
            self.reviews[column] = drafter.reviews(own, self.rnd, self.limit, self.cascade.lenience)
        asked = [(b, paths[b].tokens, below[b].tokens) for b in paths]
        found = self.reviews[column].review(asked)
        return {b: _Part(r.tokens, r.logs, [column] * len(r.tokens)) for b, r in zip(paths, found, strict=True)}

    def _copied(self, b: int, path: _Part, count: int) -> _Part:
        rnd, copier = self.rnd, self.cascade.copier
        tokens, logs = copier.continued(self.state.copier, rnd.host_slots[b], rnd.requests[b], path.tokens, count)
        return _Part(tokens, logs, [len(self.cascade.drafters)] * len(tokens))

    def _alone(self, drafter: Drafter, column: int, wanted: dict[int, int], room: dict[int, int]) -> _Parts:
        """The chain of a drafter that cannot review; it is the first, so there is no path yet."""
        asked = list(wanted)
        sizes = [min(wanted[b], room[b]) for b in asked]
        some = len(asked) < self.rnd.batch
        rnd, base = (
            (self.rnd.take(asked), self.base.take(put(asked, self.rnd.device))) if some else (self.rnd, self.base)
        )
        own = self.limit.take(asked).at_most(sizes, sizes)
        # A chain of best tokens says what each one's chance is; one that shares the target's uniforms agrees more often.
        made = drafter.propose(self.state.drafters[column], rnd, base, own, _CHAIN if self.least is None else _BEST)
        self.fault = made.fault
        self.passes += made.passes
        self.seconds += made.pass_seconds
        self.state.calls[column] += made.passes
        tree = made.tree
        tokens, live, score = host(tree.tokens), host(tree.live), host(tree.score.double())
        parts: _Parts = {}
        for r, b in enumerate(asked):
            kept = [i for i in range(1, tree.num_nodes) if live[r][i]][: sizes[r]]
            above = [0.0, *(score[r][i] for i in kept)]
            logs = [min(score[r][i] - before, 0.0) for i, before in zip(kept, above, strict=False)]
            parts[b] = _Part([tokens[r][i] for i in kept], logs, [column] * len(kept))
        return parts

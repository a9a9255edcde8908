"""NGram: copy what followed the last few tokens when they stood in this text before. Several matches become a tree.

No model, microseconds, and the index grows with the text: each new token adds one entry per pattern length.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftwood.core.forward import Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.drafters.retrieval.merged import Place, merge
from draftwood.drafters.retrieval.retrieved import Retrieved, as_given, columns
from draftwood.drafters.stateless import Stateless
from draftwood.errors import need_at_least


@dataclass(slots=True)
class Index:
    """Where every pattern of n_min..n_max tokens ended, oldest first. The text is owned here: a copy that only grows."""

    n_min: int
    n_max: int
    text: list[int] = field(default_factory=list[int])
    ends: dict[tuple[int, ...], list[int]] = field(default_factory=dict[tuple[int, ...], list[int]])

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens; the pattern that ends the text is entered only when something follows it."""
        text, ends, n_min, n_max = self.text, self.ends, self.n_min, self.n_max
        for token in tokens:
            size = len(text)
            last = tuple(text[-n_max:])
            for n in range(n_min, len(last) + 1):
                pattern = last[-n:]
                if pattern in ends:
                    ends[pattern].append(size)
                else:
                    ends[pattern] = [size]
            text.append(token)

    def matches(self, most: int) -> list[tuple[int, int]]:
        """(pattern length, where its continuation starts), longest patterns first, the most recent first among equals."""
        last = tuple(self.text[-self.n_max :])
        if last[-self.n_min :] not in self.ends:
            return []  # no longer pattern either: it would end with this one
        found: list[tuple[int, int]] = []
        seen: set[int] = set()
        for n in range(len(last), self.n_min - 1, -1):
            for end in reversed(self.ends.get(last[-n:], ())):
                if end not in seen:
                    seen.add(end)
                    found.append((n, end))
                if len(found) == most:
                    return found
        return found

    def agreement(self, n: int, end: int) -> int:
        """How many tokens before `end` agree with the end of the text, of which n are known to; at most LONGEST."""
        text, size = self.text, len(self.text)
        while n < min(end, LONGEST) and text[end - n - 1] == text[size - n - 1]:
            n += 1
        return n


TRUST = 0.22  # log-odds for every agreeing token
LONGEST = 20  # agreement beyond this says nothing more

_State = dict[int, tuple[Request, Index]]  # by slot


@dataclass(frozen=True, slots=True)
class NGram(Stateless):
    """Patterns of n_max down to n_min tokens; at most `branches` earlier places are merged into one tree.

    A place of which the last m tokens agree with the end of the text is followed by the same token with a chance of about
    1 / (1 + exp(-TRUST (m - 2))): the log-odds grow with the agreement, as measured on the embedded model's answers. Each
    copied token adds one to m. Where places disagree, the chance is shared by weight: a longer pattern counts more, and an
    older place of the same pattern `fade` times as much as the next newer one.
    """

    n_min: int = 2
    n_max: int = 4
    branches: int = 4
    trust: float = 4.0
    fade: float = 0.7
    needs: Needs = Needs()
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def __post_init__(self) -> None:
        need_at_least("NGram", n_min=(self.n_min, 1), n_max=(self.n_max, self.n_min), branches=(self.branches, 1))

    def init(self, slots: int) -> _State:
        return {}

    def propose(self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        return as_given(base, found := self.retrieve(state, rnd, limit), columns(found, rnd, limit))

    def retrieve(self, state: _State, rnd: Round, limit: Limit) -> list[Retrieved]:
        sequences = zip(rnd.host_slots, rnd.requests, limit.depths, limit.budgets, strict=True)
        return [self._found(self._index(state, slot, r), depth, nodes) for slot, r, depth, nodes in sequences]

    def _index(self, state: _State, slot: int, request: Request) -> Index:
        known = state.get(slot)
        if known is None or known[0] is not request:
            known = state[slot] = (request, Index(self.n_min, self.n_max))
        index = known[1]
        index.extend(request.known_from(len(index.text), request.num_known))
        return index

    def _found(self, index: Index, depth: int, nodes: int) -> Retrieved:
        """Continuations of all matches by shared prefix, the best `nodes` of them, parents first."""
        matches = index.matches(self.branches) if depth and nodes else []
        places = [
            Place(index.text[end : end + depth], self.trust**n * self.fade**rank, index.agreement(n, end))
            for rank, (n, end) in enumerate(matches)
        ]
        return merge(places, nodes, log_chance)

    def free(self, state: _State, slots: Sequence[int]) -> None:
        for slot in slots:
            state.pop(slot, None)


def log_chance(match: int) -> float:
    """Log of the chance that the token behind so many agreeing ones is the right one."""
    return -math.log1p(math.exp(-TRUST * (min(match, LONGEST) - 2)))

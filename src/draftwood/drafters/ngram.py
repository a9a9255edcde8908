"""NGram: copy what followed the last few tokens when they stood in this text before. Several matches become a tree.

No model, microseconds, and the index grows with the text: each new token adds one entry per pattern length.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwood.core import host
from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
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
        for token in tokens:
            size = len(self.text)
            for n in range(self.n_min, min(self.n_max, size) + 1):
                self.ends.setdefault(tuple(self.text[size - n :]), []).append(size)
            self.text.append(token)

    def matches(self, most: int) -> list[tuple[int, int]]:
        """(pattern length, where its continuation starts), longest patterns first, the most recent first among equals."""
        found: list[tuple[int, int]] = []
        seen: set[int] = set()
        for n in range(min(self.n_max, len(self.text)), self.n_min - 1, -1):
            for end in reversed(self.ends.get(tuple(self.text[-n:]), [])):
                if end not in seen:
                    seen.add(end)
                    found.append((n, end))
                if len(found) == most:
                    return found
        return found


_State = dict[int, tuple[Request, Index]]  # by slot


@dataclass(slots=True)
class _Node:
    token: int
    parent: int
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class NGram:
    """Patterns of n_max down to n_min tokens; at most `branches` earlier places are merged into one tree.

    A longer pattern counts `trust` times as much per token, an older place of the same pattern `fade` times as much as
    the next newer one; a node's score is the logarithm of its share.
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

    def admit(self, state: Any, slot: int, request: Request) -> int:
        return request.num_known

    def begin(self, state: _State, rnd: Round, output: ForwardOutput) -> None:
        return None

    def propose(self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        sequences = zip(rnd.host_slots, rnd.requests, limit.depths, limit.budgets, strict=True)
        tries = [self._trie(self._index(state, slot, r), depth, nodes) for slot, r, depth, nodes in sequences]
        return base.with_given(
            [[node.token for node in trie[1:]] for trie in tries],
            [[node.parent for node in trie[1:]] for trie in tries],
            [[math.log(node.weight / trie[0].weight) for node in trie[1:]] for trie in tries],
            least=0 if host.on_host(rnd.device) or not any(trie[1:] for trie in tries) else limit.tier.nodes - 1,
        )

    def _index(self, state: _State, slot: int, request: Request) -> Index:
        known = state.get(slot)
        if known is None or known[0] is not request:
            known = state[slot] = (request, Index(self.n_min, self.n_max))
        index = known[1]
        index.extend(request.known_from(len(index.text), request.num_known))
        return index

    def _trie(self, index: Index, depth: int, nodes: int) -> list[_Node]:
        """Continuations of all matches by shared prefix, the best `nodes` of them, parents first."""
        trie = [_Node(-1, -1)]
        where: dict[tuple[int, int], int] = {}
        if depth == 0 or nodes == 0:
            return trie
        for rank, (n, start) in enumerate(index.matches(self.branches)):
            weight = self.trust**n * self.fade**rank
            at = 0
            trie[0].weight += weight
            for token in index.text[start : start + depth]:
                if (at, token) not in where:
                    where[at, token] = len(trie)
                    trie.append(_Node(token, at))
                at = where[at, token]
                trie[at].weight += weight
        return _best(trie, nodes)

    def commit(self, state: _State, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        return None

    def free(self, state: _State, slots: Sequence[int]) -> None:
        for slot in slots:
            state.pop(slot, None)


def _best(trie: list[_Node], nodes: int) -> list[_Node]:
    """The heaviest nodes. A child never weighs more than its parent and stands behind it, so the cut is closed."""
    if len(trie) - 1 <= nodes:
        return trie
    kept = sorted(sorted(range(1, len(trie)), key=lambda i: (-trie[i].weight, i))[:nodes])
    number = {old: new for new, old in enumerate([0, *kept])}
    return [trie[0], *(_Node(trie[i].token, number[trie[i].parent], trie[i].weight) for i in kept)]

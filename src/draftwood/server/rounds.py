"""Rounds as a caller may see them: the drafted tree, what was accepted, and the seconds it took."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from draftwood.core import host as hosts
from draftwood.core.host import host, read_later
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.tree import SCORED
from draftwood.core.verdict import Outcome


@dataclass(frozen=True, slots=True)
class RoundView:
    """One sequence in one round. Nodes are numbered from 1; the parent 0 is the newest token before the round."""

    index: int
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    parents: tuple[int, ...]
    sources: tuple[int, ...]
    accepted: tuple[int, ...]
    probability: tuple[float | None, ...]  # the drafter's own, None for a token that was given without
    seconds: tuple[float, float, float]  # of the whole batch: drafting, pass and verification, all
    emitted: tuple[str, ...]

    def to_dict(self, choice: int) -> dict[str, Any]:
        draft, verify, total = self.seconds
        return {
            "index": self.index,
            "choice": choice,
            "token_ids": list(self.token_ids),
            "texts": list(self.texts),
            "parents": list(self.parents),
            "sources": list(self.sources),
            "accepted": list(self.accepted),
            "probability": list(self.probability),
            "seconds": {"draft": draft, "verify": verify, "total": total},
            "emitted": list(self.emitted),
        }


class RoundRecorder:
    """Shows rounds of the requests that asked for it; costs nothing where none did. On an accelerator the tree is copied
    without waiting."""

    def __init__(self, token_text: Callable[[int], str]) -> None:
        self._text = token_text
        self._watched: dict[int, tuple[Request, list[RoundView]]] = {}  # by identity of the request
        self._pending: Callable[[], None] | None = None

    def watch(self, request: Request, views: list[RoundView]) -> None:
        self._watched[id(request)] = request, views

    def forget(self, request: Request) -> None:
        self._watched.pop(id(request), None)

    def record(self, rnd: Round, outcome: Outcome) -> None:
        self.flush()
        asked = [b for b, request in enumerate(rnd.requests) if id(request) in self._watched]
        if not asked:
            return
        tree, paths, times = outcome.proposal.tree, outcome.verdict.to_host().paths, outcome.seconds
        kept = outcome.clipped or tuple(len(path) for path in paths)
        seconds = times["propose"], times["score"] + times["verify"], times.total
        columns = (
            tree.tokens,
            tree.parents,
            tree.live & (tree.role == SCORED),
            tree.source,
            _probability(rnd, outcome),
        )

        def write(whole: Sequence[Any]) -> None:
            for b in asked:
                request, views = self._watched[id(rnd.requests[b])]
                tokens, parents, live, sources, probs = (column[b] for column in whole)
                at = [i for i in range(1, len(tokens)) if live[i]]
                number = {0: 0, **{column: i for i, column in enumerate(at, 1)}}
                path = [number[node] for node in paths[b][1:] if node in number]
                ids = tuple(tokens[i] for i in at)
                views.append(
                    RoundView(
                        index=request.stats.target_passes - 1,
                        token_ids=ids,
                        texts=tuple(map(self._text, ids)),
                        parents=tuple(number[parents[i]] for i in at),
                        sources=tuple(sources[i] for i in at),
                        accepted=tuple(path[: kept[b]]),
                        probability=tuple(None if probs[i] < 0 else min(probs[i], 1.0) for i in at),
                        seconds=seconds,
                        emitted=tuple(map(self._text, outcome.emitted[b][: kept[b]])),
                    )
                )

        if hosts.on_host(tree.tokens.device):
            write([host(x) for x in columns])
        else:
            numbers = read_later(*columns)
            self._pending = lambda: write(numbers())

    def flush(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending()


def _probability(rnd: Round, outcome: Outcome) -> torch.Tensor:
    """Of each node in the distribution it was drawn from; -1 where there is none."""
    proposal, tree = outcome.proposal, outcome.proposal.tree
    none = torch.full(tree.tokens.shape, -1.0, device=tree.tokens.device)
    if proposal.q is None or not proposal.q.num_distributions:
        return none
    index = proposal.q_indices().gather(1, tree.parents.clamp(0, tree.num_nodes - 1))
    drawn = (tree.copies > 0) & (index >= 0) & (tree.parents >= 0)
    size = rnd.requests[0].vocab_size
    found = proposal.q.at(torch.where(drawn, index, -1), tree.tokens.clamp(0, size), size)
    return torch.where(drawn, found.to(none.dtype), none)

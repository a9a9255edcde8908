"""Recorder: every round of an engine as records, for a file or a list.

A tree on an accelerator is copied without waiting and read one round later, when the copy has long been done: a recorder
adds no host read to a round. All else that it keeps is on the host already.
"""

from collections.abc import Callable
from typing import Any

import torch

from draftwood.bench.trace.records import LOWEST, Asked, Ended, Record, RoundRecord, SequenceRecord, stored_params
from draftwood.core import host as hosts
from draftwood.core.host import host, read_later
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.tree import SCORED, TokenTree
from draftwood.core.verdict import Outcome

Nodes = list[tuple[list[int], list[int], list[int], list[float], dict[int, int]]]
"""Of each sequence: tokens, parents, sources and scores of its scored nodes, and their numbers by column of the tree."""
_BARE = [([], [], [], [], {0: 0})]


class Recorder:
    """`sink` gets the records in order. Requests are numbered in the order of their first rounds."""

    def __init__(self, sink: Callable[[Record], None]) -> None:
        self.sink = sink
        self._numbers: dict[int, tuple[Request, int]] = {}  # by identity, as long as the request runs
        self._count = 0
        self._pending: Callable[[], None] | None = None  # writes the last round

    def record(self, rnd: Round, outcome: Outcome) -> None:
        self.flush()
        numbers = [self._number(request) for request in rnd.requests]
        tree, lengths, times = outcome.proposal.tree, rnd.host_lengths, outcome.seconds
        paths = outcome.verdict.to_host().paths
        kept = outcome.clipped or tuple(len(path) for path in paths)
        ended = [
            Ended(number, str(request.finish_reason), request.finish_detail)
            for number, request in zip(numbers, rnd.requests, strict=True)
            if request.finished
        ]

        def write(nodes: Nodes) -> None:
            found: list[SequenceRecord] = []
            for b, number in enumerate(numbers):
                tokens, parents, sources, scores, place = nodes[b]
                path, emitted = [place[node] for node in paths[b][1:]], outcome.emitted[b][: len(paths[b])]
                found.append(
                    SequenceRecord(number, lengths[b], tokens, parents, sources, scores, path, emitted, kept[b])
                )
            self.sink(RoundRecord(times, tuple(found)))
            for each in ended:
                self.sink(each)

        if tree.num_nodes == 1 or not rnd.batch:
            write(_BARE * rnd.batch)
        elif hosts.on_host(tree.tokens.device):
            write(_nodes([host(x) for x in _columns(tree)]))
        else:
            numbers_of = read_later(*_columns(tree))
            self._pending = lambda: write(_nodes(numbers_of()))

    def flush(self) -> None:
        """Write a round that was copied and not read yet."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending()

    def _number(self, request: Request) -> int:
        known = self._numbers.get(id(request))
        if known is None:
            self._numbers = {key: each for key, each in self._numbers.items() if not each[0].finished}
            known = self._numbers[id(request)] = request, self._count
            self._count += 1
            params = stored_params(request.params)
            self.sink(Asked(known[1], request.prompt, request.seed, list(request.eos), params))
        return known[1]


def _columns(tree: TokenTree) -> tuple[torch.Tensor, ...]:
    return tree.tokens, tree.parents, tree.live, tree.role, tree.source, tree.score


def _nodes(columns: list[Any]) -> Nodes:
    return [_scored(*each) for each in zip(*columns, strict=True)]


def _scored(
    tokens: list[int], parents: list[int], live: list[bool], role: list[int], source: list[int], score: list[float]
) -> tuple[list[int], list[int], list[int], list[float], dict[int, int]]:
    at = [i for i in range(1, len(tokens)) if live[i] and role[i] == SCORED]
    number = {0: 0}
    for i, column in enumerate(at, 1):
        number[column] = i
    named = [source[i] for i in at]
    return (
        [tokens[i] for i in at],
        [number[parents[i]] for i in at],
        named[:1] if len(set(named)) == 1 else named,
        [round(max(score[i], LOWEST), 4) for i in at],
        number,
    )

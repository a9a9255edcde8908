"""HostTree: a round's trees as plain lists, copied from the device once, for all later decisions on the host.

Trees are small, and a tensor operation on a few numbers costs as much as one on thousands. So distributions stay tensors,
and the structure of trees is looked up in lists.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from draftwood.core.host import host, put
from draftwood.core.proposal import Started
from draftwood.core.tree import AHEAD, SCORED, TokenTree
from draftwood.core.verdict import HostVerdict, Verdict

T = TypeVar("T", int, bool)


@dataclass(frozen=True, slots=True)
class HostTree:
    """By sequence and node. `rank`: place after the root among the nodes of the pass, -1 for nodes outside it."""

    tokens: list[list[int]]
    parents: list[list[int]]
    source: list[list[int]]
    depth: list[list[int]]
    rank: list[list[int]]
    drafted: list[int]  # live scored nodes below the root
    deepest: list[int]  # depth of the deepest of them
    in_pass: list[int]  # nodes below the root that the pass runs: scored ones and probes
    scored: list[list[bool]]  # live, and checked in this pass
    entries: list[list[int]]  # staged entry, counted from the root's: the rank, unless a drafter has staged the nodes

    @staticmethod
    def of(tree: TokenTree) -> "HostTree":
        columns = torch.stack([tree.tokens, tree.parents, tree.live.long(), tree.role, tree.source])
        if tree.num_nodes == 1:
            return HostTree._bare(*host(columns[..., 0]))
        whole: list[list[list[int]]] = host(columns)
        tokens, parents, alive, roles, source = whole
        depth: list[list[int]] = []
        rank: list[list[int]] = []
        scored: list[list[bool]] = []
        for above, here, kinds in zip(parents, alive, roles, strict=True):
            deep, places, last = [0], [0], 0
            for parent, on, kind in zip(above[1:], here[1:], kinds[1:], strict=True):
                deep.append(deep[parent] + 1 if 0 <= parent < len(deep) else 1)
                inside = on and kind != AHEAD
                last += 1 if inside else 0
                places.append(last if inside else -1)
            depth.append(deep)
            rank.append(places)
            scored.append([on > 0 and kind == SCORED for on, kind in zip(here, kinds, strict=True)])
        return HostTree(
            tokens=tokens,
            parents=parents,
            source=source,
            depth=depth,
            rank=rank,
            drafted=[sum(nodes[1:]) for nodes in scored],
            deepest=[max(d * on for d, on in zip(*each, strict=True)) for each in zip(depth, scored, strict=True)],
            in_pass=[max(places) for places in rank],
            scored=scored,
            entries=rank,
        )

    def staged(self, started: Started) -> "HostTree":
        """The same trees with the entries at which some of them are staged already."""
        own: list[list[int]] = (
            [list(range(self.width))] * self.batch if started.entries is None else host(started.entries)
        )
        which = started.sequences or (True,) * self.batch
        each = zip(which, own, self.rank, strict=True)
        return replace(self, entries=[entries if there else rank for there, entries, rank in each])

    @staticmethod
    def _bare(
        tokens: list[int], parents: list[int], alive: list[int], roles: list[int], source: list[int]
    ) -> "HostTree":
        """Nothing is drafted, and there may be a thousand sequences: equal ones share one list."""
        none = [0] * len(tokens)
        scored = [on > 0 and role == SCORED for on, role in zip(alive, roles, strict=True)]
        return HostTree(
            tokens=_single(tokens),
            parents=_single(parents),
            source=_single(source),
            depth=_single(none),
            rank=(rank := _single(none)),
            entries=rank,
            drafted=none,
            deepest=none,
            in_pass=none,
            scored=_single(scored),
        )

    @property
    def batch(self) -> int:
        return len(self.tokens)

    @property
    def width(self) -> int:
        """Nodes of every sequence, dead ones counted."""
        return len(self.tokens[0]) if self.tokens else 1

    def path(self, sequence: int, node: int) -> list[int]:
        """From the root down to a node."""
        found = [node]
        while found[-1] > 0:
            found.append(self.parents[sequence][found[-1]])
        return found[::-1]

    def follow(self, choice: list[list[int]], device: torch.device) -> Verdict:
        """From the root down: the chosen token after each node, as long as a scored child carries it."""
        paths: list[list[int]] = []
        after: list[int] = []
        if self.width == 1:
            return verdict([[0] for _ in choice], [tokens[0] for tokens in choice], device)
        for b, tokens in enumerate(choice):
            child = {
                (parent, token): i
                for i, (parent, token, on) in enumerate(
                    zip(self.parents[b], self.tokens[b], self.scored[b], strict=True)
                )
                if on and i
            }
            path, node = [0], 0
            while (node := child.get((node, tokens[node]), -1)) >= 0:
                path.append(node)
            paths.append(path)
            after.append(tokens[path[-1]])
        return verdict(paths, after, device)


def _single(column: list[T]) -> list[list[T]]:
    """Of each sequence its one node."""
    shared = {x: [x] for x in set(column)}
    return [shared[x] for x in column]


def verdict(paths: list[list[int]], after: list[int], device: torch.device) -> Verdict:
    """Accepted nodes of every sequence, root first, and the token after them."""
    width = max((len(p) for p in paths), default=1)
    padded = [p + [-1] * (width - len(p)) for p in paths]
    return Verdict(
        path=put(padded, device).view(len(paths), width),
        count=put([len(p) - 1 for p in paths], device),
        next_token=put(after, device),
        on_host=HostVerdict(paths, after),
    )

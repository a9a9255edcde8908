"""Levels: where the nodes of a growing tree are staged in a draft's cache, one draft pass per level.

    known text   entries 0 .. n-1        the first pass, which ends with the root
    level 1      entries n .. n+F-1      one for each place of the first frontier below the root
    level 2      entries n+F .. n+2F-1

On a CPU the positions are kept in lists, and only nodes that exist are run. On an accelerator every place of a frontier gets
an entry, whether it holds a node or not, so that the shape of each pass is known without a host read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from draftwood.core import host as hosts
from draftwood.core.forward import ForwardInput, HostInput, Span
from draftwood.core.host import host, put
from draftwood.core.score import KnownTokens
from draftwood.core.tree import TokenTree


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """One draft pass over a frontier. Outputs are counted through all passes, those of the roots first."""

    x: ForwardInput
    above: Int[Tensor, "U"]  # the output of each node's parent
    places: list[int]  # of each node in the flattened frontier


class HostLevels:
    """From lists: trees are small, and a tensor operation on a few numbers costs as much as one on thousands. `known`: what
    the first pass runs of each sequence, ending with the root's own; None: the sequence is not drafted."""

    def __init__(self, known: Sequence[KnownTokens | None], device: torch.device) -> None:
        self._known, self._device = known, device
        self._last = [0 if k is None else len(k.tokens) - 1 for k in known]  # the last staged entry
        self._outputs = 0
        # By sequence: node -> staged entry, output, position.
        self._run: list[dict[int, tuple[int, int, int]]] = [{} for _ in known]
        # By sequence: (staged entry, token behind it) -> its staged entry.
        self.children: list[dict[tuple[int, int], int]] = [{} for _ in known]
        for b, k in enumerate(known):
            if k is not None:
                self._run[b][0] = self._last[b], self._outputs, k.done + self._last[b]
                self._outputs += 1

    def step(self, tree: TokenTree, frontier: Int[Tensor, "B F"]) -> Level:
        """Each node behind the staged entry of its parent."""
        tokens, parents = host(tree.tokens), host(tree.parents)
        columns = HostInput([], [], [], [])
        positions: list[int] = []
        above: list[int] = []
        places: list[int] = []
        for b, (k, run, nodes) in enumerate(zip(self._known, self._run, host(frontier), strict=True)):
            for f, node in enumerate(nodes):
                if k is None or node < 0 or parents[b][node] not in run:
                    continue
                behind, output, position = run[parents[b][node]]
                self._last[b] += 1
                run[node] = self._last[b], self._outputs + len(places), position + 1
                self.children[b][behind, tokens[b][node]] = self._last[b]
                columns.ids.append(tokens[b][node])
                columns.slots.append(k.slot)
                columns.entries.append(self._last[b])
                columns.parents.append(behind)
                positions.append(position + 1)
                above.append(output)
                places.append(b * len(nodes) + f)
        self._outputs += len(places)
        x = ForwardInput.of(columns, positions, list(range(len(places))), self._device)
        return Level(x, put(above, self._device), places)


class DeviceLevels:
    """The same without a host read: a pass over every place of the frontier of the drafted sequences. Where nodes are staged
    stays on the device, so `children` is empty."""

    def __init__(self, known: Sequence[KnownTokens | None], device: torch.device) -> None:
        self._drafted = [b for b, k in enumerate(known) if k is not None]
        self._known = [k for k in known if k is not None]
        self._first = [len(k.tokens) for k in self._known]  # staged entry of the next level
        self._outputs = len(self._known)
        self._slots = put([k.slot for k in self._known], device)[:, None]
        last = [len(k.tokens) - 1 for k in self._known]
        positions = [k.done + at for k, at in zip(self._known, last, strict=True)]
        # Staged entry, position and output of every node: [3, B, nodes so far]; -1: the node was not run.
        self._run = put([last, positions, list(range(self._outputs))], device)[..., None]
        self.children: list[dict[tuple[int, int], int]] = [{} for _ in known]

    def step(self, tree: TokenTree, frontier: Int[Tensor, "B F"]) -> Level:
        width, device = frontier.shape[1], frontier.device
        places = [b * width + f for b in self._drafted for f in range(width)]
        if len(self._drafted) < tree.batch:
            drafted = put(self._drafted, device)
            tree, frontier = tree.take(drafted), frontier[drafted]
        nodes, node = tree.num_nodes, frontier.clamp_min(0)
        run = torch.nn.functional.pad(self._run, (0, nodes + 1 - self._run.shape[2]), value=-1)
        parents = tree.parents.gather(1, node).clamp_min(0)
        behind, position, above = run.gather(2, parents.expand(3, -1, -1))
        index = torch.arange(len(places), device=device).view_as(node)
        own = put(self._first, device)[:, None] + index[:1]
        new = torch.stack([own, position + 1, self._outputs + index])
        # Places without a node write to a column behind all nodes, so that they change no node's entry.
        to = torch.where(frontier >= 0, node, nodes)
        self._run = run.scatter(2, to.expand(3, -1, -1), new)[..., :-1]
        spans = tuple(
            Span(k.slot, b * width, (b + 1) * width, k.done, first, len(k.tokens))
            for b, (k, first) in enumerate(zip(self._known, self._first, strict=True))
        )
        self._first = [first + width for first in self._first]
        self._outputs += len(places)
        columns = (tree.tokens.gather(1, node), self._slots.expand_as(node), position + 1, own, behind)
        x = ForwardInput(*(column.flatten() for column in columns), want=index.flatten(), spans=spans)
        return Level(x, above.clamp_min(0).flatten(), places)


def levels_of(known: Sequence[KnownTokens | None], device: torch.device) -> HostLevels | DeviceLevels:
    return (HostLevels if hosts.on_host(device) else DeviceLevels)(known, device)


def rows_at(x: Shaped[Tensor, "U W"], places: list[int], count: int) -> Shaped[Tensor, "rows W"]:
    """Each row at its place among `count` rows, zeros elsewhere."""
    if len(places) == count:
        return x
    return x.new_zeros(count, x.shape[1]).index_copy(0, put(places, x.device), x)

"""Score: one target pass over known tokens and trees. For the engine and for drafters that score drafts of their own; the
exact tester runs this very function."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core import host as hosts
from draftwood.core.forward import ForwardInput, HostInput, LayerPlan, Span
from draftwood.core.host import put
from draftwood.core.host_tree import HostTree
from draftwood.core.proposal import Proposal, Started
from draftwood.core.protocols import Runner
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.started_pass import hidden_after
from draftwood.core.tree import TokenTree


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """Known tokens of one slot that are not in its cache yet: prompt chunks, or the root alone."""

    slot: int
    done: int  # entries already in the cache
    tokens: list[int]


Places = list[list[int]]
"""Of every node of every sequence its place in the pass."""


def assemble(
    chains: list[KnownTokens],
    tree: TokenTree,
    depth: Int[Tensor, "B N"] | None = None,
    started: Started | None = None,
) -> tuple[ForwardInput, Places, HostTree | None]:
    """One pass: each slot's chain, then its tree. The first B chains belong to the B trees and end with their roots; the
    others only fill the cache. Also the place in the pass of every node, and the trees as lists where they were read.
    `started`: what a drafter has staged already keeps its entries.

        chain   a b c        entries 0 1 2   c is the root
        tree        ├ d      entry 3, follows 2
                    └ e      entry 4, follows 2
    """
    if not hosts.on_host(tree.tokens.device):
        return *assemble_unread(chains, tree, depth), None
    host_tree = HostTree.of(tree) if started is None else HostTree.of(tree).staged(started)
    return *assemble_lists(chains, host_tree, tree.tokens.device), host_tree


def assemble_lists(chains: list[KnownTokens], host_tree: HostTree, device: torch.device) -> tuple[ForwardInput, Places]:
    """From lists: a pass over live nodes alone."""
    ids: list[int] = []
    slots: list[int] = []
    positions: list[int] = []
    entries: list[int] = []
    parents: list[int] = []
    want: list[int] = []
    places: Places = []
    for b, chain in enumerate(chains):
        length = len(chain.tokens)
        last = length - 1
        root = len(ids) + last
        ids += chain.tokens
        entries += range(length)
        parents += range(-1, last)
        positions += range(chain.done, chain.done + length)
        if b < host_tree.batch and host_tree.width == 1:
            want.append(root)
            places.append([root])
        elif b < host_tree.batch:
            rank, depth, above = host_tree.rank[b], host_tree.depth[b], host_tree.parents[b]
            entry = host_tree.entries[b]
            want.append(root)
            # Dead nodes point at the root, so that gathers stay in range; what is read there has no meaning.
            place = [root] * len(rank)
            for i in range(1, len(rank)):
                if rank[i] > 0:
                    place[i] = root + rank[i]
                    want.append(place[i])
                    ids.append(host_tree.tokens[b][i])
                    entries.append(last + entry[i])
                    parents.append(last + entry[above[i]])
                    positions.append(chain.done + last + depth[i])
            places.append(place)
        slots += [chain.slot] * (len(ids) - len(slots))
    return ForwardInput.of(HostInput(ids, slots, entries, parents), positions, want, device), places


def assemble_unread(
    chains: list[KnownTokens], tree: TokenTree, depth: Int[Tensor, "B N"] | None = None
) -> tuple[ForwardInput, Places]:
    """From trees that stay where they are: every node rides, dead ones too, so the shape is known without looking.
    `depth`: of the nodes, if somebody has them."""
    device, nodes = tree.tokens.device, tree.num_nodes
    spans: list[Span] = []
    places: Places = []
    at = 0
    for b, chain in enumerate(chains):
        size = len(chain.tokens) + (nodes - 1 if b < tree.batch else 0)
        spans.append(Span(chain.slot, at, at + size, chain.done, 0, len(chain.tokens)))
        if b < tree.batch:
            root = at + len(chain.tokens) - 1
            places.append(list(range(root, root + nodes)))
        at += size
    if depth is None:
        depth = tree.depths() if nodes > 1 else torch.zeros_like(tree.tokens)
    if all(len(chain.tokens) == 1 for chain in chains):  # every pass of decoding: the roots are the trees' own
        slots, first = put([[c.slot for c in chains], [c.done for c in chains]], device)[..., None]
        index = torch.arange(nodes, device=device).expand(tree.batch, -1)
        columns = [tree.tokens, slots.expand_as(index), first + depth, index, tree.parents]
        ids, slot, positions, entries, parents = (column.flatten() for column in columns)
    else:
        ids, slot, positions, entries, parents = _mixed(chains, tree, depth)
    want = (
        torch.arange(at, device=device)
        if at == tree.batch * nodes
        else put([p for each in places for p in each], device)
    )
    return ForwardInput(ids, slot, positions, entries, parents, want, spans=tuple(spans)), places


def _mixed(
    chains: list[KnownTokens], tree: TokenTree, depth: Int[Tensor, "B N"]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The columns of a pass in which prompt chunks ride: the known part from lists, the trees' part picked into it."""
    device, nodes = tree.tokens.device, tree.num_nodes
    known: list[list[int]] = [[], [], [], [], []]  # ids, slots, positions, entries, parents; trees' parts are filled in
    source: list[int] = []  # node that a place takes its columns from, counted through all trees; -1: it is known
    for b, chain in enumerate(chains):
        length = len(chain.tokens)
        more = nodes - 1 if b < tree.batch else 0
        columns = [
            [*chain.tokens, *[0] * more],
            [chain.slot] * (length + more),
            # A node stands as deep below the root as it is drawn, and follows an entry behind the root's.
            [*range(chain.done, chain.done + length), *[chain.done + length - 1] * more],
            [*range(length + more)],
            [*range(-1, length - 1), *[length - 1] * more],
        ]
        for column, part in zip(known, columns, strict=True):
            column += part
        source += [-1] * length + [b * nodes + i for i in range(1, more + 1)]
    ids, slots, positions, entries, parents = put(known, device).unbind(0)
    drawn = put(source, device)
    node, real = drawn.clamp_min(0), drawn >= 0
    if tree.batch:
        ids = torch.where(real, tree.tokens.flatten()[node], ids)
        positions = positions + torch.where(real, depth.flatten()[node], 0)
        parents = parents + torch.where(real, tree.parents.flatten()[node], 0)
    return ids, slots, positions, entries, parents


def score(
    runner: Runner,
    chains: list[KnownTokens],
    proposal: Proposal,
    rnd: Round,
    *,
    taps: frozenset[int] = frozenset(),
) -> Scored:
    """One pass over known tokens and trees. Layers that a drafter has run already are left out, unless one of them is
    tapped."""
    started = None if proposal.started is None or proposal.started.hides(taps) else proposal.started
    tokens, places, host_tree = assemble(chains, proposal.tree, proposal.depths, started)
    if started is None:
        output = runner.execute(tokens, taps=taps)
    else:
        ride = proposal.tree.live if host_tree is None else [[r >= 0 for r in rank] for rank in host_tree.rank]
        hidden = hidden_after(runner, tokens, started, places, ride)
        output = runner.execute(tokens.starting_from(hidden), taps=taps, layers=LayerPlan(start=started.layers))
    nodes = put(places, proposal.tree.tokens.device) if places else tokens.want.view(0, 1)
    return Scored(replace(output, token_index=nodes, host_index=places), proposal.tree, rnd, host_tree)

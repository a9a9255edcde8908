"""Score: one target pass over known tokens and trees. For the engine, for drafters that score drafts of their own, and for
the exact tester."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core import host as hosts
from draftwood.core.forward import ForwardInput, HostInput, LayerPlan, Span
from draftwood.core.host import put
from draftwood.core.host_tree import HostTree
from draftwood.core.proposal import Inputs, Proposal, Started
from draftwood.core.protocols import Runner
from draftwood.core.round import Round
from draftwood.core.scored import Scored
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
    inputs: Inputs | None = None,
) -> tuple[ForwardInput, Places, HostTree | None]:
    """One pass: each slot's chain, then its tree. The first B chains belong to the B trees and end with their roots; the
    others only fill the cache. Also the place in the pass of every node, and the trees as lists where they were read.
    `started`: what a drafter has staged already keeps its entries. `inputs`: nodes with one get no logits, where that saves
    any.

        chain   a b c        entries 0 1 2   c is the root
        tree        ├ d      entry 3, follows 2
                    └ e      entry 4, follows 2
    """
    if not hosts.on_host(tree.tokens.device):
        return *assemble_tensors(chains, tree, depth), None
    host_tree = HostTree.of(tree) if started is None else HostTree.of(tree).staged(started)
    own = None if inputs is None else hosts.host(inputs.index)
    return *assemble_lists(chains, host_tree, tree.tokens.device, own), host_tree


def assemble_lists(
    chains: list[KnownTokens], host_tree: HostTree, device: torch.device, own: list[list[int]] | None = None
) -> tuple[ForwardInput, Places]:
    """From lists: a pass over live nodes alone. `own`: the inputs of nodes, as in `Inputs.index`."""
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
                    if own is None or own[b][i] < 0:
                        want.append(place[i])
                    ids.append(host_tree.tokens[b][i])
                    entries.append(last + entry[i])
                    parents.append(last + entry[above[i]])
                    positions.append(chain.done + last + depth[i])
            places.append(place)
        slots += [chain.slot] * (len(ids) - len(slots))
    return ForwardInput.of(HostInput(ids, slots, entries, parents), positions, want, device), places


def assemble_tensors(
    chains: list[KnownTokens], tree: TokenTree, depth: Int[Tensor, "B N"] | None = None
) -> tuple[ForwardInput, Places]:
    """From tensors, without a host read: every node is in the pass, dead ones too, so that its shape is known. `depth`: of
    the nodes, if it is known."""
    device, batch, nodes = tree.tokens.device, tree.batch, tree.num_nodes
    spans: list[Span] = []
    places: Places = []
    known: list[list[int]] = [[], [], [], [], []]  # ids, slots, positions, entries, parents of tokens before the roots
    order: list[int] = []  # of every token of the pass its place in the columns below: nodes first, then known tokens
    at = 0
    for b, chain in enumerate(chains):
        length = len(chain.tokens)
        before = length - 1 if b < batch else length
        size = before + (nodes if b < batch else 0)
        spans.append(Span(chain.slot, at, at + size, chain.done, 0, length))
        if before:
            first = batch * nodes + len(known[0])
            order += range(first, first + before)
            text = chain.tokens[:before], [chain.slot] * before, range(chain.done, chain.done + before)
            for column, part in zip(known, (*text, range(before), range(-1, before - 1)), strict=True):
                column += part
        if b < batch:
            order += range(b * nodes, (b + 1) * nodes)
            places.append(list(range(at + before, at + size)))
        at += size
    if depth is None:
        depth = tree.depths() if nodes > 1 else torch.zeros_like(tree.tokens)
    roots = [(c.slot, c.done + len(c.tokens) - 1, len(c.tokens) - 1) for c in chains[:batch]]
    slots, position, entry = put(roots, device).view(batch, 3, 1).unbind(1)
    index = torch.arange(nodes, device=device).expand(batch, -1)
    entries, parents = (entry + index, entry + tree.parents) if known[0] else (index, tree.parents)
    trees = [x.flatten() for x in (tree.tokens, slots.expand_as(index), position + depth, entries, parents)]
    if not known[0]:  # every pass of decoding
        return ForwardInput(*trees, want=torch.arange(at, device=device), spans=tuple(spans)), places
    columns = torch.cat([torch.stack(trees), put(known, device)], dim=1)[:, put(order, device)]
    want = put([place for each in places for place in each], device)
    return ForwardInput(*columns.unbind(0), want=want, spans=tuple(spans)), places


def score(
    runner: Runner,
    chains: list[KnownTokens],
    proposal: Proposal,
    rnd: Round,
    *,
    taps: frozenset[int] = frozenset(),
) -> Scored:
    """One pass over known tokens and trees. Layers that a drafter has run already are left out, unless one of them is
    tapped and the drafter has not kept what it put out."""
    started = proposal.started
    early = frozenset[int]() if started is None else frozenset(tap for tap in taps if 0 <= tap < started.layers)
    if started is not None and not early <= started.features.keys():
        started = None
    tokens, places, host_tree = assemble(chains, proposal.tree, proposal.depths, started, proposal.inputs)
    nodes = put(places, proposal.tree.tokens.device) if places else tokens.want.view(0, 1)
    if proposal.inputs is not None:
        tokens = tokens.starting_from(_entering(runner, tokens, proposal.inputs, proposal.tree, nodes))
    if started is None:
        output = runner.execute(tokens, taps=taps)
    else:
        hidden, kept = _started_states(runner, tokens, started, places, host_tree, early)
        tokens = tokens.starting_from(hidden)
        output = runner.execute(tokens, taps=taps - early, layers=LayerPlan(start=started.layers))
        output = replace(output, features=output.features | kept) if early else output
    return Scored(replace(output, token_index=nodes, host_index=places), proposal.tree, rnd, host_tree)


def _entering(
    runner: Runner, x: ForwardInput, inputs: Inputs, tree: TokenTree, nodes: Int[Tensor, "B N"]
) -> Float[Tensor, "T H"]:
    """What enters the first layer: the embeddings of all tokens, as the model makes them, but for nodes with inputs of their
    own. Dead nodes write what is there already."""
    hidden = runner.embed(x.ids)
    own = tree.live & (inputs.index >= 0)
    vectors = inputs.vectors.to(hidden.dtype)[inputs.index.clamp_min(0)]
    hidden[nodes] = torch.where(own[..., None], vectors, hidden[nodes])
    return hidden


def _started_states(
    runner: Runner,
    x: ForwardInput,
    started: Started,
    places: Places,
    host_tree: HostTree | None,
    taps: frozenset[int],
) -> tuple[Float[Tensor, "T H"], dict[int, Float[Tensor, "T H"]]]:
    """Hidden states after the layers that a drafter has already run, and after those that are tapped: its own for the nodes
    of started sequences. For other tokens, prompt chunks and bare roots, the same layers run first, in a pass of their
    own."""
    batch, nodes = started.hidden.shape[:2]
    which = started.sequences or (True,) * batch
    own = {tap: started.features[tap].flatten(0, 1) for tap in taps}
    if host_tree is None and x.size == batch * nodes and all(which):
        return started.hidden.flatten(0, 1), own
    source: list[int] = []
    to: list[int] = []
    for b in (b for b, there in enumerate(which) if there):
        inside = [i for i in range(nodes) if host_tree is None or host_tree.rank[b][i] >= 0]
        source += [b * nodes + i for i in inside]
        to += [places[b][i] for i in inside]
    rest = sorted(set(range(x.size)) - set(to))
    at, node = put([to, source], started.hidden.device).unbind(0)

    def placed(y: Tensor) -> Tensor:
        return y.new_zeros(x.size, y.shape[-1]).index_copy_(0, at, y.index_select(0, node))

    hidden, found = placed(started.hidden.flatten(0, 1)), {tap: placed(y) for tap, y in own.items()}
    if rest:
        first = runner.execute(x.part(rest), taps=taps, layers=LayerPlan(stop=started.layers))
        where = put(rest, hidden.device)
        hidden.index_copy_(0, where, first.hidden.to(hidden.dtype))
        for tap, y in found.items():
            y.index_copy_(0, where, first.features[tap].to(y.dtype))
    return hidden, found

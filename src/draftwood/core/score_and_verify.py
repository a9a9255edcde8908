"""Score and verify: one target pass over known tokens and trees, then a rule. For the engine and for drafters that review
their own drafts; the exact tester runs this very function."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.forward import ALL, ForwardInput, ForwardOutput, HostInput, LayerPlan
from draftwood.core.host import put
from draftwood.core.host_tree import HostTree
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Runner
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict

Rule = Callable[[Proposal, Scored, Round], Verdict]
"""`Verifier.verify`, or something that guards it."""


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """Known tokens of one slot that are not in its cache yet: prompt chunks, or the root alone."""

    slot: int
    done: int  # entries already in the cache
    tokens: list[int]


def assemble(
    chains: list[KnownTokens], host_tree: HostTree, device: torch.device
) -> tuple[ForwardInput, Int[Tensor, "B N"]]:
    """One pass: each slot's chain, then its tree. The first B chains belong to the B trees and end with their roots; the
    others only fill the cache. Also the place in the pass of every node.

        chain   a b c        entries 0 1 2   c is the root
        tree        ├ d      entry 3, follows 2
                    └ e      entry 4, follows 2
    """
    ids: list[int] = []
    slots: list[int] = []
    positions: list[int] = []
    entries: list[int] = []
    parents: list[int] = []
    want: list[int] = []
    places: list[list[int]] = []
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
            want.append(root)
            # Dead nodes point at the root, so that gathers stay in range; what is read there has no meaning.
            place = [root] * len(rank)
            for i in range(1, len(rank)):
                if rank[i] > 0:
                    place[i] = root + rank[i]
                    want.append(place[i])
                    ids.append(host_tree.tokens[b][i])
                    entries.append(last + rank[i])
                    parents.append(last + rank[above[i]])
                    positions.append(chain.done + last + depth[i])
            places.append(place)
        slots += [chain.slot] * (len(ids) - len(slots))
    tokens = ForwardInput.of(HostInput(ids, slots, entries, parents), positions, want, device)
    nodes = put(places, device)
    return tokens, nodes if places else nodes.view(0, 1)


def score(
    runner: Runner,
    chains: list[KnownTokens],
    proposal: Proposal,
    rnd: Round,
    *,
    taps: frozenset[int] = frozenset(),
    layers: LayerPlan = ALL,
) -> Scored:
    """One pass over known tokens and trees."""
    host_tree = HostTree.of(proposal.tree)
    tokens, places = assemble(chains, host_tree, proposal.tree.tokens.device)
    output: ForwardOutput = runner.execute(tokens, taps=taps, layers=layers)
    return Scored(replace(output, token_index=places), proposal.tree, rnd, host_tree)


def review(
    runner: Runner,
    chains: list[KnownTokens],
    proposal: Proposal,
    rule: Rule,
    rnd: Round,
    *,
    taps: frozenset[int] = frozenset(),
    mark: Callable[[str], None] = lambda part: None,
) -> tuple[Verdict, Scored]:
    """Score a proposal in one pass and let a rule keep a path. `mark` is called when a part is done."""
    scored = score(runner, chains, proposal, rnd, taps=taps)
    mark("score")
    verdict = rule(proposal, scored, rnd)
    mark("verify")
    return verdict, scored


def staged_entries(
    chains: list[KnownTokens], host_tree: HostTree, verdict: Verdict
) -> tuple[list[list[int]], list[list[int]]]:
    """The staged entries to commit and their tokens: the whole chain, then those of the accepted nodes, in path order."""
    paths = verdict.to_host().paths
    kept: list[list[int]] = []
    texts: list[list[int]] = []
    for b, chain in enumerate(chains):
        entries, tokens = list(range(len(chain.tokens))), chain.tokens
        if b < host_tree.batch and len(paths[b]) > 1:
            entries += [len(chain.tokens) - 1 + host_tree.rank[b][node] for node in paths[b][1:]]
            tokens = [*tokens, *(host_tree.tokens[b][node] for node in paths[b][1:])]
        kept.append(entries)
        texts.append(tokens)
    return kept, texts

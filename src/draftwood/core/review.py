"""Score and verify: one target pass over known tokens and trees, then a rule. For the engine, for drafters that review
inside, and for the exact tester, which holds this very function."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.core.host import host
from draftwood.core.passes import ALL, LayerPlan, Seen, Tokens
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Cache, Model
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.tree import AHEAD, TokenTree
from draftwood.core.verdict import Verdict

Rule = Callable[[Proposal, Scored, Round], Verdict]
"""`Verifier.verify`, or something that guards it."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Known tokens of one slot that are not in its cache yet: prompt chunks, or the root alone."""

    slot: int
    done: int  # rows already in the cache
    tokens: list[int]


def assemble(chains: list[Chain], proposal: Proposal) -> tuple[Tokens, Int[Tensor, "B N"]]:
    """One pass: each slot's chain, then its tree. The first B chains belong to the B rows of the proposal and end with
    its roots; the others only fill the cache. Also the place in the pass of every node.

        chain   a b c        rows 0 1 2      c is the root
        tree        ├ d      row  3, follows 2
                    └ e      row  4, follows 2
    """
    tree = proposal.tree
    device, batch = tree.tokens.device, tree.batch
    longest = max(len(c.tokens) for c in chains)
    length = torch.tensor([len(c.tokens) for c in chains], device=device)
    done = torch.tensor([c.done for c in chains], device=device)
    step = torch.arange(longest, device=device)
    in_chain = step < length[:, None]
    ids = torch.tensor([c.tokens + [0] * (longest - len(c.tokens)) for c in chains], device=device)
    rows = step.expand(len(chains), -1)

    pad = len(chains) - batch
    below, rank = _ranks(tree)
    node_row = length[:batch, None] - 1 + rank
    parent_row = node_row.gather(1, tree.parents.clamp_min(0))

    def widen(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 0, 0, pad)) if pad else x

    valid = torch.cat([in_chain, widen(below)], dim=1)
    flat = valid.flatten().nonzero()[:, 0]

    def lay(chain: Tensor, nodes: Tensor) -> Tensor:
        return torch.cat([chain, widen(nodes[:, 1:])], dim=1).flatten()[flat]

    place = torch.full((valid.numel(),), -1, dtype=torch.int64, device=device)
    place[flat] = torch.arange(len(flat), device=device)
    place = place.view(len(chains), -1)
    root_place = place.gather(1, length[:, None] - 1)[:batch]
    row_of_node = torch.cat([root_place, place[:batch, longest:]], dim=1)
    # Dead nodes point at the root, so that gathers stay in range; nobody may believe what they say.
    row_of_node = torch.where(row_of_node >= 0, row_of_node, root_place)
    want = torch.cat([root_place, torch.where(below, place[:batch, longest:], -1)], dim=1).flatten()
    tokens = Tokens(
        ids=lay(ids, tree.tokens),
        slots=torch.tensor([c.slot for c in chains], device=device)[:, None].expand_as(valid).flatten()[flat],
        positions=lay(done[:, None] + rows, done[:batch, None] + length[:batch, None] - 1 + tree.depths()),
        rows=lay(rows, node_row),
        parents=lay(rows - 1, parent_row),
        want=want[want >= 0],
    )
    return tokens, row_of_node


def _ranks(tree: TokenTree) -> tuple[Bool[Tensor, "B M"], Int[Tensor, "B N"]]:
    """Which nodes below the root ride in the pass, and each node's place behind the root: the root sits on the chain's
    last row, the others follow in index order."""
    below = tree.live[:, 1:] & (tree.role[:, 1:] != AHEAD)
    return below, torch.nn.functional.pad(below.long().cumsum(1), (1, 0))


def score(
    model: Model,
    cache: Cache,
    chains: list[Chain],
    proposal: Proposal,
    rnd: Round,
    *,
    taps: frozenset[int] = frozenset(),
    layers: LayerPlan = ALL,
) -> Scored:
    """One pass over known tokens and trees."""
    tokens, row = assemble(chains, proposal)
    seen: Seen = model.forward(tokens, cache, taps=taps, layers=layers)
    return Scored(replace(seen, row=row), proposal.tree, rnd)


def review(
    model: Model,
    cache: Cache,
    chains: list[Chain],
    proposal: Proposal,
    rule: Rule,
    rnd: Round,
    *,
    taps: frozenset[int] = frozenset(),
    mark: Callable[[str], None] = lambda part: None,
) -> tuple[Verdict, Scored]:
    """Score a proposal in one pass and let a rule keep a path. `mark` is told when a part is done."""
    scored = score(model, cache, chains, proposal, rnd, taps=taps)
    mark("score")
    verdict = rule(proposal, scored, rnd)
    mark("verify")
    return verdict, scored


def staged_rows(chains: list[Chain], proposal: Proposal, verdict: Verdict) -> list[list[int]]:
    """The staged rows to commit: the whole chain, then the rows of the accepted nodes, in path order."""
    tree = proposal.tree
    _, rank = _ranks(tree)
    path = verdict.path
    ranks = host(rank.gather(1, path.clamp_min(0)))
    kept: list[list[int]] = []
    for b, chain in enumerate(chains):
        rows = list(range(len(chain.tokens)))
        if b < tree.batch:
            rows += [len(rows) - 1 + r for r, n in zip(ranks[b][1:], host(path[b, 1:]), strict=True) if n >= 0]
        kept.append(rows)
    return kept

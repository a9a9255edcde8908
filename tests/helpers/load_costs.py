"""A controller played against a made-up machine: known seconds, tokens accepted with a known chance."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from draftwood.core.host_tree import HostTree
from draftwood.core.limit import Load
from draftwood.core.proposal import Proposal
from draftwood.core.verdict import Outcome, Times, Verdict
from draftwood.testing.contracts import toy_round


@dataclass(frozen=True)
class LineCosts:
    """A pass has a base and a price per token, a draft a price per level."""

    token: float
    level: float

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        return 1 + self.token * tokens

    def draft_seconds(self, passes: int, nodes: int | None = None) -> float:
        return self.level * passes

    def rest_seconds(self) -> float:
        return 0.0

    def observe(self, times: Times) -> None:
        return None


@dataclass(frozen=True)
class Played:
    depth: int
    seconds: float
    tokens: int


def played(
    controller: Any,
    costs: LineCosts,
    chance: float | Callable[[int], float],
    batch: int,
    rounds: int,
    keep: Callable[[Any], None] = lambda state: None,
) -> list[Played]:
    """What it planned round by round, and what came of it."""
    rng, state = random.Random(1), controller.init(batch)
    load, rnd = Load(costs, batch, 0, 100), toy_round([[1]] * batch, 5)
    found: list[Played] = []
    for i in range(rounds):
        limit = controller.plan(state, rnd, load)
        luck = chance(i) if callable(chance) else chance
        counts: list[int] = []
        for most in limit.depths:
            count = 0
            while count < most and rng.random() < luck:
                count += 1
            counts.append(count)
        nodes = sum(limit.depths)
        seconds = {"score": costs.pass_seconds(batch + nodes), "propose": costs.draft_seconds(limit.tier.depth)}
        times = Times(seconds, draft_passes=limit.tier.depth, draft_nodes=nodes, tokens=batch + nodes)
        controller.update(state, rnd, outcome_of(rnd, limit.depths, counts, times))
        found.append(Played(limit.tier.depth, times.total, batch + sum(counts)))
    keep(state)
    return found


def outcome_of(rnd: Any, depths: tuple[int, ...], counts: list[int], times: Times) -> Outcome:
    """Chains of token 1, of which so many were accepted."""
    tree = Proposal.roots(rnd.roots()).tree
    for level in range(max(depths)):
        at = torch.full((rnd.batch, 1), tree.num_nodes - 1)
        live = torch.tensor([[d > level] for d in depths])
        tree = tree.add(at, torch.ones_like(at), live=live, copies=0)
    count = torch.tensor(counts)
    path = torch.arange(tree.num_nodes).expand(rnd.batch, -1)
    path = torch.where(path <= count[:, None], path, -1)
    sizes = HostTree.of(tree)
    verdict = Verdict(path, count, torch.zeros_like(count))
    emitted = [[1] * c + [0] for c in counts]
    drafted, deepest = tuple(sizes.drafted), tuple(sizes.deepest)
    return Outcome(Proposal(tree), verdict, torch.ones_like(path), times, drafted, deepest, emitted)

"""Node chances: what drafters say of their nodes, corrected by drafter, position and text, so that nodes of different
requests can be compared; and what a round costs by the number of its nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp

import torch

from draftwood.controllers.estimates.calibration import Calibration
from draftwood.controllers.estimates.survival import Survival
from draftwood.core.competition import Correction, Price
from draftwood.core.host import host, on_host
from draftwood.core.limit import CostEstimate, Limit, Load
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome

SOURCES = 4  # drafters that are corrected separately
_FOLLOW = 0.1  # steps of a text's own shift: many nodes are judged in a round
_POINTS = 256  # nodes of the whole batch up to which prices are looked up


@dataclass(slots=True)
class NodeChances:
    """`drafters`: by source; the last one stands for all beyond. On an accelerator nothing is learned, because trees are not
    read there: scores count as they are."""

    drafters: tuple[Survival, ...] = field(
        default_factory=lambda: tuple(Survival(follow=_FOLLOW) for _ in range(SOURCES))
    )

    def correction(self, rnd: Round, depth: int) -> Correction:
        offset = [
            [[each.offset_of(at) + each.shifts.get(slot, 0.0) for at in range(depth)] for each in self.drafters]
            for slot in rnd.host_slots
        ]
        slope = [each.slope for each in self.drafters]
        return Correction(torch.tensor(slope, device=rnd.device), torch.tensor(offset, device=rnd.device))

    def learn(self, rnd: Round, outcome: Outcome) -> None:
        """Every scored child of a node that was reached is judged by the token that was emitted there, as far as that became
        text."""
        tree = outcome.proposal.tree
        if tree.num_nodes == 1 or not on_host(rnd.device):
            return
        parents, tokens, sources, live = (host(x) for x in (tree.parents, tree.tokens, tree.source, tree.live))
        scores, kept = host(tree.score), outcome.clipped or [len(each) for each in outcome.emitted]
        for b, slot in enumerate(rnd.host_slots):
            children: dict[int, list[int]] = {}
            for i, parent in enumerate(parents[b]):
                if parent >= 0 and live[b][i]:
                    children.setdefault(parent, []).append(i)
            at = 0
            for position, token in enumerate(outcome.emitted[b][: kept[b]]):
                hit = -1
                for i in children.get(at, ()):
                    survival = self.drafters[min(max(sources[b][i], 0), SOURCES - 1)]
                    chance = exp(min(scores[b][i] - scores[b][at], 0.0))
                    survival.learn(slot, chance, tokens[b][i] == token, position)
                    hit = i if tokens[b][i] == token else hit
                if hit < 0:
                    break
                at = hit

    def free(self, slots: Sequence[int]) -> None:
        for each in self.drafters:
            for slot in slots:
                each.free(slot)

    @property
    def calibration(self) -> Calibration:
        """Of all drafters together."""
        whole = Calibration()
        for each in self.drafters:
            whole.add(each.calibration)
        return whole


def price(cost: CostEstimate, rnd: Round, load: Load, limit: Limit) -> Price:
    """Seconds of a round by its drafted nodes. Drafting is paid whatever is kept. A convex line below the measured one:
    where one more node is dearer than those behind it, a choice that takes them one by one would stop too early."""
    draft = cost.draft_seconds(limit.tier.depth, sum(limit.budgets)) + cost.rest_seconds()
    most = min(sum(limit.budgets), _POINTS)
    points = [max(cost.pass_seconds(rnd.batch + n, load.context) + draft, 1e-9) for n in range(most + 1)]
    return Price(torch.tensor(convex(points), device=rnd.device), rnd.batch)


def convex(points: Sequence[float]) -> list[float]:
    """The greatest convex line that is nowhere above these points at 0, 1, 2, .."""
    corners: list[int] = []
    for i, value in enumerate(points):
        while len(corners) > 1:
            a, b = corners[-2:]
            if (points[b] - points[a]) * (i - b) < (value - points[b]) * (b - a):
                break
            corners.pop()
        corners.append(i)
    line = [points[0]]
    for a, b in pairwise(corners):
        line += [points[a] + (points[b] - points[a]) * (i - a) / (b - a) for i in range(a + 1, b + 1)]
    return line

"""Fuse: the drafts of several drafters in one tree, which one pass checks."""

from dataclasses import dataclass
from typing import Any

from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Drafter, TreePolicy
from draftwood.core.round import Round
from draftwood.drafters.combine.merge import merge, with_known_beginnings
from draftwood.drafters.combine.several import Several, with_source
from draftwood.errors import CompositionError, need_at_least
from draftwood.trees.grow import by_score


@dataclass(frozen=True, slots=True, eq=False)
class Fuse(Several):
    """Every drafter drafts from the bare root; a path that several have is there once, with the source of the first.

    The others share `given` nodes, at most half of the limit; the first drafter has the rest. The split is fixed: which
    draws are judged must not depend on drawn tokens, and how many of the given nodes are copies of drawn ones does. If the
    policy draws, only the first drafter does, and the others give nodes without a distribution.

    `prune`: of the others only continuations whose first token the first drafter has among its own.
    """

    drafters: tuple[Drafter, ...]
    given: int = 8
    prune: bool = False

    def __post_init__(self) -> None:
        need_at_least("Fuse", drafters=(len(self.drafters), 1), given=(self.given, 0))
        borrowing = [type(each).__name__ for each in self.drafters if each.needs.borrow]
        if borrowing and len(self.drafters) > 1:
            raise CompositionError(
                f"{borrowing[0]} hands over target layers it has run, Fuse adds nodes that it has not seen\n"
                f"hint: {borrowing[0]} alone, or drafters that do not borrow the target"
            )

    @property
    def draws(self) -> frozenset[Draw]:
        """Those of the first drafter, if the others draw nothing; else all must give their nodes."""
        first, *others = self.drafters
        given = frozenset({Draw.GIVEN})
        return first.draws if all(each.draws == given for each in others) else given

    def propose(self, state: list[Any], rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        if base.tree.num_nodes > 1 or rnd.in_flight:
            return base  # what follows a draft is not known yet
        given = [min(n // 2, self.given) for n in limit.budgets]
        mine = _within(limit, [n - less for n, less in zip(limit.budgets, given, strict=True)])
        rest = _within(limit, [n // max(len(self.drafters) - 1, 1) for n in given])
        found = with_source(self.drafters[0].propose(state[0], rnd, base, mine, policy), 0)
        if found.tree.num_nodes > 1:
            found = found.keep(policy.select(found.tree, mine))
        leading = found
        for i, (each, own) in enumerate(zip(self.drafters[1:], state[1:], strict=True), 1):
            made = with_source(each.propose(own, rnd, base, rest, policy), i)
            if made.tree.num_nodes > 1:
                made = made.keep(by_score(made.tree, rest))
            found = merge(found, with_known_beginnings(leading, made) if self.prune else made)
        return found


def _within(limit: Limit, nodes: list[int]) -> Limit:
    return limit.at_most([deep if n else 0 for deep, n in zip(limit.depths, nodes, strict=True)], nodes)

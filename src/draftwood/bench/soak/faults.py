"""A drafter that raises, returns what is no number, or turns slow, as long as a switch says so."""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from draftwood.bench.wrapped import Wrapped
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.round import Round

FAULTS = ("", "raises", "nan", "slow")
SLOW_SECONDS = 0.03


@dataclass(slots=True)
class Fault:
    """What the drafter does now; "": what it should. `met`: how often each fault was met."""

    now: str = ""
    met: dict[str, int] | None = None

    def note(self) -> None:
        self.met = {} if self.met is None else self.met
        self.met[self.now] = self.met.get(self.now, 0) + 1


@dataclass(frozen=True, slots=True, eq=False)
class FaultyDrafter(Wrapped):
    """A drafter around another one."""

    fault: Fault

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        if self.fault.now:
            self.fault.note()
        if self.fault.now == "raises":
            raise RuntimeError("an injected fault")
        if self.fault.now == "slow":
            time.sleep(SLOW_SECONDS)
        made = self.inner.propose(state, rnd, base, limit, policy)
        if self.fault.now != "nan":
            return made
        score = torch.full_like(made.tree.score, torch.nan)
        return replace(made, tree=replace(made.tree, score=score))

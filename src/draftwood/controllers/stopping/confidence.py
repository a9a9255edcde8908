"""Confidence: a draft goes on as long as the drafter is sure enough of what it wrote.

    root ─ a .9 ─ b .8 ─ c .4          threshold .6: c stays, and nothing is drafted below it

A token that the drafter gave less than the threshold is still verified: it is drawn already, and only draws that have not
happened are stopped. So whatever the threshold is, and however it was found from finished rounds, every rule stays exact.

    fixed      `Confident`: one threshold
    adaptive   `AdaptiveConfidence`: it rises where too few drafted tokens are accepted, and falls where enough are

With a rule that looks at q, a greedy request drafts from distributions of a single token, of which the drafter is always
sure; with `match` they are those of temperature 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftwood.core.forward import Needs
from draftwood.core.limit import Limit, Load
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.errors import OptionError, need_size


@dataclass(frozen=True, slots=True)
class Confident:
    """At most `depth` levels and `nodes` drafted nodes (None: a chain of that depth)."""

    depth: int
    nodes: int | None = None
    threshold: float = 0.6
    needs: Needs = Needs()

    def __post_init__(self) -> None:
        _check("Confident", self.depth, self.nodes, threshold=self.threshold)

    def init(self, slots: int) -> None:
        return None

    def plan(self, state: None, rnd: Round, load: Load) -> Limit:
        nodes = self.depth if self.nodes is None else self.nodes
        sizes = [self.depth] * rnd.batch, [nodes] * rnd.batch
        return Limit.of(*sizes, rnd.device, surer=[self.threshold] * rnd.batch)

    def update(self, state: None, rnd: Round, outcome: Outcome) -> None:
        return None

    def free(self, state: None, slots: Sequence[int]) -> None:
        return None


@dataclass(slots=True)
class Threshold:
    """Of one request, with the share of its drafted tokens that were accepted; None: nothing was drafted yet."""

    value: float
    share: float | None = None


@dataclass(slots=True)
class _State:
    slots: dict[int, Threshold] = field(default_factory=dict[int, Threshold])


@dataclass(frozen=True, slots=True)
class AdaptiveConfidence:
    """After a round with share s of its drafted tokens accepted:

        share      <-  memory * share + (1 - memory) * s
        threshold  <-  inertia * threshold + (1 - inertia) * (threshold + step if share < wanted else threshold - step)

    A draft of the full depth was not stopped, so it moves the threshold only where it is too low. `greedy`, `sampled`: where
    the threshold of a request begins."""

    depth: int
    nodes: int | None = None
    wanted: float = 0.9
    step: float = 0.01
    memory: float = 0.5
    inertia: float = 0.9
    greedy: float = 0.8
    sampled: float = 0.5
    needs: Needs = Needs()

    def __post_init__(self) -> None:
        shares = {name: getattr(self, name) for name in ("wanted", "step", "memory", "inertia", "greedy", "sampled")}
        _check("AdaptiveConfidence", self.depth, self.nodes, **shares)

    def init(self, slots: int) -> _State:
        return _State()

    def threshold(self, state: _State, slot: int, greedy: bool) -> Threshold:
        return state.slots.setdefault(slot, Threshold(self.greedy if greedy else self.sampled))

    def plan(self, state: _State, rnd: Round, load: Load) -> Limit:
        nodes = self.depth if self.nodes is None else self.nodes
        each = zip(rnd.host_slots, rnd.requests, strict=True)
        surer = [self.threshold(state, slot, request.params.greedy).value for slot, request in each]
        return Limit.of([self.depth] * rnd.batch, [nodes] * rnd.batch, rnd.device, surer=surer)

    def update(self, state: _State, rnd: Round, outcome: Outcome) -> None:
        judged = zip(rnd.host_slots, rnd.requests, outcome.judged, outcome.accepted, strict=True)
        for slot, request, levels, kept in judged:
            if levels:
                self.learn(self.threshold(state, slot, request.params.greedy), levels, kept)

    def learn(self, own: Threshold, drafted: int, accepted: int) -> None:
        """One round of one request."""
        now = accepted / drafted
        own.share = now if own.share is None else self.memory * own.share + (1 - self.memory) * now
        if own.share >= self.wanted and drafted >= self.depth:
            return
        aim = own.value + (self.step if own.share < self.wanted else -self.step)
        own.value = min(max(self.inertia * own.value + (1 - self.inertia) * aim, 0.0), 1.0)

    def free(self, state: _State, slots: Sequence[int]) -> None:
        for slot in slots:
            state.slots.pop(slot, None)


def _check(name: str, depth: int, nodes: int | None, **shares: float) -> None:
    need_size(name, depth=(depth, 0), nodes=(depth if nodes is None else nodes, 0))
    for option, value in shares.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise OptionError(f"{name}: {option} cannot be {value}\nhint: from 0 to 1")

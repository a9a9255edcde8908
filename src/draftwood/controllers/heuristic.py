"""Heuristic: longer after a full acceptance, shorter after a miss, and a pause when guessing does not pay here.

It never slows a request for long: every drafted round is priced with the machine's own measured pass times, and when the
running gain falls below 1 the sequence decodes plainly for a while before it is tried again, each time for longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftwood.core.forward import Needs
from draftwood.core.limit import CostEstimate, Limit, Load
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.errors import need_at_least


@dataclass(slots=True)
class _Sequence:
    depth: int
    gain: float = 1.0  # running (tokens per pass) / (pass time in units of a plain pass)
    rounds: int = 0  # drafted rounds behind `gain`
    pause: int = 0  # plain rounds still to go
    rest: int = 4  # length of the next pause


@dataclass(slots=True)
class _State:
    sequences: dict[int, _Sequence] = field(default_factory=dict[int, _Sequence])
    cost_model: CostEstimate | None = None


@dataclass(frozen=True, slots=True)
class Heuristic:
    """Between `least` and `most` levels, at most `nodes` drafted nodes; `gain` is averaged over about `window` rounds."""

    start: int = 6
    least: int = 2
    most: int = 12
    nodes: int = 16
    window: int = 6
    longest_pause: int = 64
    needs: Needs = Needs()

    def __post_init__(self) -> None:
        need_at_least("Heuristic", least=(self.least, 1), most=(self.most, self.least), nodes=(self.nodes, 0))
        need_at_least(
            "Heuristic", start=(self.start, 0), window=(self.window, 1), longest_pause=(self.longest_pause, 1)
        )

    def init(self, slots: int) -> _State:
        return _State()

    def plan(self, state: _State, rnd: Round, load: Load) -> Limit:
        state.cost_model = load.cost_model
        depth: list[int] = []
        for slot in rnd.host_slots:
            own = state.sequences.setdefault(slot, _Sequence(min(self.start, self.most)))
            depth.append(0 if own.pause else own.depth)
        return Limit.of(depth, [self.nodes] * rnd.batch, rnd.device)

    def update(self, state: _State, rnd: Round, outcome: Outcome) -> None:
        for slot, nodes, levels, kept in zip(
            rnd.host_slots, outcome.drafted, outcome.judged, outcome.accepted, strict=True
        ):
            own = state.sequences.get(slot)
            if own is None:
                continue
            if own.pause:
                own.pause -= 1
            elif nodes and levels:
                self._learn(own, state, rnd.batch, outcome, nodes, levels, kept)

    def _learn(
        self, own: _Sequence, state: _State, batch: int, outcome: Outcome, nodes: int, levels: int, kept: int
    ) -> None:
        own.depth = min(own.depth + 2, self.most) if kept == levels else max(own.depth - 1, self.least)
        assert state.cost_model is not None
        context = outcome.seconds.context
        plain = state.cost_model.pass_seconds(batch, context)
        wide = state.cost_model.pass_seconds(batch + batch * nodes, context) + outcome.seconds["propose"]
        own.rounds += 1
        rate = max(1 / own.rounds, 1 / self.window)
        own.gain += rate * ((kept + 1) * plain / wide - own.gain)
        if own.rounds >= 3 and own.gain < 1:
            own.pause, own.rest = own.rest, min(2 * own.rest, self.longest_pause)
            own.rounds, own.depth = 0, self.least
        elif own.gain > 1.2:
            own.rest = 4

    def free(self, state: _State, slots: Sequence[int]) -> None:
        for slot in slots:
            state.sequences.pop(slot, None)

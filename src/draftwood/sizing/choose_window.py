"""The size of a window of probes that is expected to emit most tokens a second on this machine."""

from dataclasses import dataclass

from draftwood.controllers.costs.priced import Priced
from draftwood.core.protocols import Runner
from draftwood.drafters.phrases.lookahead import Lookahead
from draftwood.drafters.phrases.window import window_nodes
from draftwood.sizing.choose_route import pass_costs
from draftwood.sizing.choose_size import SLOWER, backend_of, timed

# (ngram, width, guesses): accepted tokens of a pass, in greedy texts and in sampled ones; measured on the embedded model.
MEASURED: dict[tuple[int, int, int], tuple[float, float]] = {
    (3, 3, 2): (0.24, 0.16),
    (3, 5, 3): (0.31, 0.19),
    (5, 7, 7): (0.34, 0.24),
    (5, 15, 15): (0.44, 0.27),
}
USED = 0.5  # of the places for phrases, those that are filled in a pass


@dataclass(frozen=True, slots=True)
class ChosenWindow:
    """A drafter whose windows and phrases run where they pay, its controller, and a sentence for the banner."""

    drafter: Lookahead
    controller: Priced
    notes: tuple[str, ...]


def choose_window(target: Runner, copy: bool) -> ChosenWindow:
    """Of the measured sizes the best by rounds that were timed here."""
    times = pass_costs(target)
    cost = timed(times)
    plain = cost.pass_seconds(1) + cost.rest_seconds()

    def gain(size: tuple[int, int, int]) -> float:
        ngram, width, guesses = size
        nodes = window_nodes(width, ngram) + round(USED * guesses * (ngram - 1))
        return (1 + MEASURED[size][0]) * plain / (cost.pass_seconds(1 + nodes) + cost.rest_seconds())

    best = max(MEASURED, key=gain)
    (ngram, width, guesses), speed = best, gain(best)
    drafter = Lookahead(ngram, width, guesses, copy, MEASURED[best])
    shape = f"a window of {window_nodes(width, ngram)} probes, phrases of {ngram - 1} tokens"
    note = f"{shape}: expected speed {speed:.2f}x plain decoding on {backend_of(target)}"
    if speed < SLOWER:
        copies = ", and phrases of the prompt where they pay" if copy else ""
        note = (
            f"windows do not pay here ({note}), so this is plain decoding{copies}; size=paper runs them in every round"
        )
    return ChosenWindow(drafter, Priced(drafter.depth, drafter.nodes, times), (note,))

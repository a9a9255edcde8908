"""How many nodes of a draft pay: the number that is expected to emit most tokens a second."""

from collections.abc import Sequence
from typing import NamedTuple


class Paying(NamedTuple):
    """The best `count` nodes, and the tokens a second of a round with them."""

    count: int
    rate: float


def most_paying(
    alive: Sequence[float], seconds: Sequence[float], *, tokens: float = 1.0, draft: float = 0.0, at_least: float = 0.0
) -> Paying:
    """`alive`: chance of each node that it is accepted together with all nodes above it, in falling order. `seconds`: of a
    round by the number of these nodes, from none on; `draft`: of drafting, which is spent whatever is kept; `tokens`: of the
    round without these nodes. No nodes where the rate is not above `at_least`.

        rate(k) = (tokens + alive[0] + .. + alive[k - 1]) / (seconds[k] + draft)
    """
    best, most = 0, at_least
    for count, chance in enumerate(alive[: len(seconds) - 1], 1):
        tokens += chance
        rate = tokens / (seconds[count] + draft)
        if rate > most:
            best, most = count, rate
    return Paying(best, most)

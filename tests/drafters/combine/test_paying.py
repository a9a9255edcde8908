"""As many nodes as bring most tokens a second."""

import random

import pytest

from draftwood.drafters.combine.paying import most_paying


@pytest.mark.parametrize("seed", range(20))
def test_the_best_number_by_trying_all(seed: int) -> None:
    rng = random.Random(seed)
    alive = sorted((rng.random() for _ in range(6)), reverse=True)
    seconds = [1.0]
    for _ in range(8):
        seconds.append(seconds[-1] + rng.random() / 2)
    tokens, draft = rng.choice([1.0, 2.5]), rng.random()
    rates = [(tokens + sum(alive[:k])) / (seconds[k] + draft) for k in range(7)]
    found = most_paying(alive, seconds, tokens=tokens, draft=draft, at_least=rates[0])
    assert found.count == rates.index(max(rates)) and found.rate == pytest.approx(max(rates))


def test_nothing_where_it_does_not_beat_what_there_is() -> None:
    assert most_paying([0.9, 0.8], [1.0, 1.1, 1.2], at_least=10.0) == (0, 10.0)
    assert most_paying([], [1.0]).count == 0


def test_no_more_nodes_than_have_a_cost() -> None:
    assert most_paying([1.0] * 9, [1.0, 1.0, 1.0]).count == 2

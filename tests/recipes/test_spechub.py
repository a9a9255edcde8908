"""SpecHub's pair is the greedy draft of two: the same distribution of the set, the same acceptance."""

from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from draftwood.testing.exact import acceptance
from draftwood.trees.best_and_one import BestAndOne
from draftwood.verifiers.rejection import Rejection
from token_rules import P, Q, distributions, one_round


def pairs(q: Sequence[float]) -> dict[tuple[int, int], float]:
    """The paper's ordered pairs around the hub, with their probabilities."""
    hub = max(range(len(q)), key=lambda i: q[i])
    found: dict[tuple[int, int], float] = {}
    for i, x in enumerate(q):
        if i != hub and x:
            found[i, hub] = x
            found[hub, i] = q[hub] * x / (1 - q[hub])
    return found


def accepted(p: Sequence[float], q: Sequence[float]) -> float:
    """By the paper's passes: first the token that is not the hub, in both orders, then the hub with what is left."""
    pair, hub = pairs(q), max(range(len(q)), key=lambda i: q[i])
    kept, unused = 0.0, [0.0, 0.0]
    for i in range(len(p)):
        want = p[i]
        for turn, at in enumerate([(i, hub), (hub, i)] if i != hub else []):
            taken = min(want, pair.get(at, 0.0))
            kept, want = kept + taken, want - taken
            unused[turn] += pair.get(at, 0.0) - taken
    return kept + min(p[hub], sum(unused))


def test_as_a_set_the_pair_is_the_hub_and_one_draw_from_the_others() -> None:
    sets: dict[frozenset[int], float] = defaultdict(float)
    for pair, prob in pairs(Q).items():
        sets[frozenset(pair)] += prob
    assert sets == pytest.approx({frozenset({3, i}): Q[i] / (1 - Q[3]) for i in range(3)})


def test_fixture_a_is_reproduced() -> None:
    assert accepted(P, Q) == pytest.approx(23 / 30) == acceptance(one_round(Rejection(), BestAndOne((2,))))


@given(st.integers(2, 5).flatmap(lambda v: st.tuples(distributions(v), distributions(v))))
@settings(max_examples=15, deadline=None)
def test_acceptance_is_that_of_the_papers_rule(pair: tuple[list[float], list[float]]) -> None:
    p, q = pair
    assume(sorted(q)[-1] > sorted(q)[-2] and max(q) < 1)  # one hub, and other tokens beside it
    assert acceptance(one_round(Rejection(), BestAndOne((2,)), p, q)) == pytest.approx(accepted(p, q), abs=1e-9)

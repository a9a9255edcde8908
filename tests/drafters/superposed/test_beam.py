"""Drafts differ, end as in beam search, and share one embedding whose weights sum to 1."""

import math
import random
from collections.abc import Sequence

import pytest

from draftwood.drafters.superposed.beam import Beam, Draft, Ranked, softmax


def never(tokens: Sequence[int]) -> bool:
    return False


def random_steps(k: int, steps: int, ended=never, seed: int = 0) -> Beam:
    rng, beam = random.Random(seed), Beam(k)
    for _ in range(steps):
        logits = sorted((rng.gauss(0, 2) for _ in range(3 * k)), reverse=True)
        ranked = Ranked(rng.sample(range(40), 3 * k), logits, 5.0)
        beam = beam.advance([ranked] * len(beam.alive), [ranked.tempered(0.5)] * len(beam.alive), ended)
    return beam


@pytest.mark.parametrize("k", [1, 3, 8])
def test_drafts_are_distinct_and_ranked(k: int) -> None:
    beam = random_steps(k, 6)
    assert len({draft.tokens for draft in beam.alive}) == len(beam.alive) == k
    scores = [draft.score for draft in beam.best()]
    assert scores == sorted(scores, reverse=True)
    for draft in beam.alive:
        assert list(draft.chances) == sorted(draft.chances, reverse=True), "chances fall along a path"


def test_the_weights_of_a_superposition_sum_to_one_and_equal_tokens_are_merged() -> None:
    drafts = (Draft((1, 7), -1.0), Draft((2, 9), -2.0), Draft((3, 7), -3.0))
    weights = Beam(3, drafts).weights()
    first, second, third = softmax([-1.0, -2.0, -3.0])
    assert weights == {7: pytest.approx(first + third), 9: pytest.approx(second)}
    assert sum(weights.values()) == pytest.approx(1)
    assert sum(random_steps(8, 5).weights().values()) == pytest.approx(1)
    assert Beam(1, (Draft((4,), -900.0),)).weights() == {4: 1.0}


def test_the_first_step_takes_one_token_for_each_draft() -> None:
    ranked = Ranked([5, 6, 7], [3.0, 2.0, 1.0], 4.0)
    beam = Beam(2).advance([ranked], [ranked.tempered(1.0)], never)
    assert [draft.tokens for draft in beam.alive] == [(5,), (6,)]
    total = math.log(sum(map(math.exp, (3, 2, 1))))
    assert beam.alive[0].chances == (-1.0,) and beam.alive[0].score == pytest.approx(3 - total)


def test_an_end_among_the_best_is_finished_and_a_worse_one_is_forgotten() -> None:
    def ends(tokens: Sequence[int]) -> bool:
        return tokens[-1] == 0

    best, last = Ranked([0, 6, 7, 8], [3.0, 2.0, 1.0, 0.5], 4.0), Ranked([5, 6, 0, 8], [3.0, 2.0, 1.0, 0.5], 4.0)
    beam = Beam(2).advance([best], [best.tempered(1.0)], ends)
    assert [draft.tokens for draft in beam.finished] == [(0,)] and [d.tokens for d in beam.alive] == [(6,), (7,)]
    assert not Beam(2).advance([last], [last.tempered(1.0)], ends).finished
    assert not beam.done
    assert Beam(1).advance([best], [best.tempered(1.0)], ends).done, "what goes on cannot overtake"


def test_candidates_that_dropped_out_are_never_taken() -> None:
    ranked = Ranked([5, 6], [3.0, 2.0], 4.0)
    beam = Beam(2).advance([ranked], [[-math.inf, -1.0]], never)
    assert [draft.tokens for draft in beam.alive] == [(6,)]
    assert Beam(2).advance([Ranked([], [], 0.0)], [[]], never).done

"""Loops are cut back to a few rounds; everything else is left alone."""

import random

import pytest

from draftwood.train.repeats import without_loop

NOISE = random.Random(0).sample(range(1000), 100)


@pytest.mark.parametrize("period", [1, 2, 7, 8, 20, 50])
def test_loop_is_cut_to_a_few_rounds(period):
    loop = [5000 + i for i in range(period)]
    kept = without_loop(NOISE + loop * (200 // period))
    assert kept[:100] == NOISE
    assert kept[100:] == (loop * 200)[: period + max(2 * period, 8)]


@pytest.mark.parametrize("tokens", [NOISE, NOISE + [1, 2] * 31, [], [7] * 63])
def test_what_is_no_long_loop_is_kept(tokens):
    assert without_loop(tokens) == tokens


def test_loop_that_has_ended_is_kept():
    tokens = [1, 2] * 60 + NOISE
    assert without_loop(tokens) == tokens

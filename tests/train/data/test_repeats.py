"""Loops are cut back to a few rounds; everything else is left alone."""

import random

import pytest

from draftwood.train.data.repeats import whole_sentences, without_loop, without_repeats

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


def test_text_ends_before_it_says_something_again():
    once = "The mill stands at the river. It was built long ago."
    assert without_repeats(f"{once} The mill stands at the river. And more.") == once
    listed = "Here are some reasons to walk:\n\n1. **It keeps you healthy**\n2. **It costs nothing at all**"
    assert without_repeats(f"{listed}\n3. **It keeps you healthy**\n4. **Something else entirely**") == listed
    assert without_repeats(once) == once and without_repeats("") == ""


def test_whole_sentences_leave_out_what_was_cut_off():
    assert whole_sentences("One. Two! Thr") == "One. Two!" and whole_sentences("Version 3.5 of") == ""

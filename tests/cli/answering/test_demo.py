"""`draftwood demo` shows a recipe and plain decoding side by side, and fails if they disagree."""

import re

import pytest

from draftwood.cli.answering import comparison

pytestmark = pytest.mark.slow


def test_demo_compares_in_one_run(draftwood):
    done = draftwood("demo", "--max-tokens", "12", "--times", "1")
    assert done.exit_code == 0 and "\x1b" not in done.stdout
    assert "The town library is open" in done.stdout
    assert re.search(r"^autoregressive +[\d.]+ +1\.00 +1\.00x$", done.stdout, re.M)
    assert re.search(r"^auto +[\d.]+ +[\d.]+ +[\d.]+x.* yes$", done.stdout, re.M)
    assert "times as fast" in done.stdout or "slower than plain" in done.stdout or "is as fast as" in done.stdout


def test_recipe_of_the_demo_can_be_chosen(draftwood):
    done = draftwood("demo", "--recipe", "prompt_lookup", "--max-tokens", "4", "--times", "1", "-o", "depth=2")
    assert done.exit_code == 0 and "prompt_lookup is" in done.stdout


def test_colours_come_with_a_legend(draftwood):
    done = draftwood("demo", "--max-tokens", "4", "--times", "1", "--color")
    drafters = "\x1b[32mgreen\x1b[0m (NGram), \x1b[36mcyan\x1b[0m (Prediction), \x1b[33myellow\x1b[0m (Features)"
    assert f"{drafters}: drafted and accepted" in done.stdout


def test_texts_that_differ_are_a_failure(draftwood, monkeypatch):
    monkeypatch.setattr(comparison.Comparison, "identical", False)
    assert draftwood("demo", "--max-tokens", "2", "--times", "1").exit_code == 1

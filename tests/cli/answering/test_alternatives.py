"""`draftwood alternatives`: several completions, labelled as lossy, for people and for programs."""

import json
from typing import Any

import pytest

PROMPT = "The capital of France is"


def test_completions_come_with_shares_and_are_called_lossy(draftwood: Any) -> None:
    done = draftwood("alternatives", PROMPT, "--raw", "--k", "4", "--max-tokens", "5")
    assert done.exit_code == 0
    lines = [line.strip().split("  ", 1) for line in done.stdout.splitlines()]
    assert len(lines) == len({text for _, text in lines}) == 4, "a line each, and all different"
    shares = [float(share) for share, _ in lines]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1, abs=0.03)
    assert "4 completions" in done.stderr and "LOSSY" in done.stderr


def test_json_has_everything_and_each_prompt_is_a_line(draftwood: Any, plain: Any) -> None:
    done = draftwood("alternatives", "Hi", "Name a fruit.", "--json", "-k", "2", "-n", "3")
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["prompt"], second["prompt"], first["lossless"]) == ("Hi", "Name a fruit.", False)
    want = plain.alternatives(plain.chat_prompt("Name a fruit."), 2, max_tokens=3)
    assert [each["text"] for each in second["alternatives"]] == list(want.texts)


def test_help_says_that_it_is_lossy_and_wrong_numbers_are_refused(draftwood: Any) -> None:
    assert "LOSSY" in draftwood("alternatives", "--help").stdout
    done = draftwood("alternatives", PROMPT, "--alpha", "1.5")
    assert done.exit_code == 2 and "alpha cannot be 1.5" in done.stderr
    done = draftwood("alternatives", PROMPT, "--store", "no-such.store")
    assert done.exit_code == 2 and "cannot be opened" in done.stderr

"""Timed rounds that were kept are used only if they are whole."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from draftwood.core.verdict import Times
from draftwood.sizing.choose_route import _checked
from draftwood.sizing.trials import SIZES


def kept() -> list[dict[str, Any]]:
    return json.loads(json.dumps([asdict(Times({"score": 0.01}, tokens=1 + nodes)) for _, nodes in SIZES]))


def test_times_of_all_sizes_are_used() -> None:
    assert _checked(kept()) == kept()


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:-1],
        lambda x: [],
        lambda x: None,
        lambda x: [*x[1:], None],
        lambda x: [*x[1:], {**x[0], "tokens": "x"}],
        lambda x: [*x[1:], {**x[0], "tokens": 0}],
        lambda x: [*x[1:], {**x[0], "context": "abc"}],
        lambda x: [*x[1:], {**x[0], "draft_passes": float("nan")}],
        lambda x: [*x[1:], {**x[0], "seconds": [1]}],
        lambda x: [*x[1:], {**x[0], "seconds": {"score": 0.01, "propose": "x"}}],
        lambda x: [*x[1:], {**x[0], "seconds": {"score": 1e308}}],
    ],
)
def test_anything_else_is_refused(change: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        _checked(change(kept()))

"""A window is as large as pays by timed rounds, and the banner says where none does."""

import pytest

from draftwood.core.verdict import Times
from draftwood.drafters.phrases.window import window_nodes
from draftwood.sizing import choose_window as chosen
from draftwood.testing.parts.tiny import tiny_runner

TARGET = tiny_runner(2)


def rounds(token: float) -> tuple[Times, ...]:
    """Timed rounds in which a token of the pass takes `token` times as long as the first one."""
    return tuple(Times({"score": 0.01 * (1 + token * (n - 1))}, tokens=n) for n in (1, 2, 4, 8, 16, 32, 64, 128))


@pytest.mark.parametrize(("token", "pays"), [(0.0, True), (0.001, True), (0.2, False), (1.0, False)])
def test_windows_are_large_where_tokens_of_a_pass_are_cheap(
    token: float, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen, "pass_costs", lambda target: rounds(token))
    found = chosen.choose_window(TARGET, copy=True)
    nodes = window_nodes(found.drafter.width, found.drafter.ngram)
    assert (nodes > 50) == pays and (nodes < 6) != pays  # of the smallest size
    assert ("do not pay" in found.notes[0]) != pays
    assert (found.controller.depth, found.controller.nodes) == (found.drafter.depth, found.drafter.nodes)

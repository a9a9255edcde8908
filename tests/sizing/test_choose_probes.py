"""Of the layouts and sizes of probes the one is taken that is expected to be fastest, and plain decoding where none pays."""

from dataclasses import asdict
from itertools import pairwise
from typing import Any

import pytest

from draftwood.controllers.costs.priced import Priced
from draftwood.core.verdict import Times
from draftwood.drafters.nets.make_drafter import probes_model
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.on_features.probes import TrainedProbes
from draftwood.sizing import choose_probes as module
from draftwood.sizing.choose_probes import Yielded, choose_probes, yielded
from draftwood.sizing.remembered import Timed
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import tiny_runner

TARGET = tiny_runner()
MODEL = probes_model(random_head("probes", TARGET), TARGET)


def passes(token: float) -> tuple[Times, ...]:
    """A pass takes 10 ms, and so much more for each token after the first."""
    return tuple(
        Times({"score": 0.01 * (1 + token * (n - 1))}, tokens=n, draft_nodes=n - 1) for n in (1, 2, 4, 8, 16, 32)
    )


def chosen(
    monkeypatch: pytest.MonkeyPatch, token: float, accepted: tuple[float, ...], most: int = 3, taken: float = 0.0
) -> Any:
    draft = Times({"score": 0.01, "propose": 0.0005}, tokens=1, draft_passes=3, draft_nodes=3)
    monkeypatch.setattr(module, "timed_pass_costs", lambda target: Timed(passes(token), taken))
    monkeypatch.setattr(module, "yielded", lambda *given: Timed(Yielded(accepted, (0.2,) * len(accepted), draft), 0.0))
    return choose_probes(TARGET, MODEL, "x", most)


def test_where_a_pass_costs_the_same_for_any_tokens_every_round_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, 0.001, (0.7, 0.5, 0.3))
    assert found.drafter.everywhere and found.drafter.depth == 3 and found.drafter.worth == pytest.approx((1.5, 0.6))
    assert isinstance(found.controller, Priced)
    assert (found.controller.depth, found.controller.nodes) == (6, 15)
    # 2.5 tokens in a pass of 16, which takes 1.015 times one of one token, and a draft of half a millisecond.
    assert "expected speed 2.35x" in found.note and "behind every token" in found.note


def test_where_tokens_are_dear_rounds_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, 0.08, (0.7, 0.5, 0.3))
    assert isinstance(found.drafter, TrainedProbes) and not found.drafter.everywhere
    assert "in every second round" in found.note


def test_no_more_probes_than_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, 0.001, (0.7, 0.5, 0.3), most=1).drafter.depth == 1


@pytest.mark.parametrize(("token", "accepted"), [(0.5, (0.7, 0.5, 0.3)), (0.05, (0.02, 0.0, 0.0))])
def test_where_no_draft_pays_it_is_plain_decoding_and_says_so(
    monkeypatch: pytest.MonkeyPatch, token: float, accepted: tuple[float, ...]
) -> None:
    found = chosen(monkeypatch, token, accepted)
    assert isinstance(found.drafter, Nothing) and found.controller.depth == 0
    assert "this is plain decoding, because drafts of probes do not pay here: expected speed 0." in found.note


def test_passes_that_were_timed_beside_busy_processes_do_not_rule_drafts_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, 0.5, (0.7, 0.5, 0.3), taken=1.0)
    assert isinstance(found.drafter, TrainedProbes) and isinstance(found.controller, Priced)
    assert "timed beside busy processes, so drafts are tried" in found.note


def test_what_drafts_give_is_measured_by_real_rounds() -> None:
    found = yielded(TARGET, MODEL, "random").found
    assert len(found.greedy) == len(found.sampled) == 3
    assert all(0 <= b <= a <= 1 for own in (found.greedy, found.sampled) for a, b in pairwise(own))
    assert found.time is not None and found.time.draft_passes == 3 and found.time["propose"] > 0


@pytest.mark.parametrize(
    "change",
    [{"greedy": []}, {"greedy": [2.0]}, {"sampled": ["x"]}, {"time": {"nonsense": 1}}, {"greedy": None}],
)
def test_a_kept_measurement_that_is_damaged_is_refused(change: dict[str, Any]) -> None:
    whole: dict[str, Any] = {"greedy": [0.5], "sampled": [0.2], "time": asdict(Times({"score": 0.1}))}
    assert module._checked(whole) is whole
    with pytest.raises((ValueError, TypeError)):
        module._checked({**whole, **change})

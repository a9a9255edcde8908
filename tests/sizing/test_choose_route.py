"""Timed rounds that were kept are used only if they are whole, and say what a draft may risk."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.core.recipe import Recipe
from draftwood.core.verdict import Times
from draftwood.drafters.combine.route import Route
from draftwood.drafters.nothing import Nothing
from draftwood.sizing import choose_route
from draftwood.sizing.choose_route import WhatPays, _checked, risk_worth_taking
from draftwood.sizing.remembered import Timed
from draftwood.sizing.trials import SIZES
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match


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


@pytest.mark.parametrize(
    ("step", "token", "right", "most", "risk"),
    [
        (0.005, 0.0, 1.0, 0, 0.5),  # a token is worth a plain pass
        (0.001, 0.001, 0.8, 0, 0.75),
        (0.0, 0.0, 0.5, 3, 1.0),  # free drafts never stop
        (0.002, 0.0, 0.5, 1, 0.5),  # 8 ms a token with chains of one
        (0.02, 0.0, 0.5, 3, 0.0),
        (0.001, 0.0, 0.0, 3, 0.0),
    ],
)
def test_a_risk_is_worth_taking_as_long_as_a_token_gains_more_than_it_costs(
    step: float, token: float, right: float, most: int, risk: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass of 10 ms; draft steps, and more tokens in the pass, cost so many seconds."""
    rounds = tuple(
        Times({"score": 0.01 + token * nodes, "propose": step * depth}, depth, nodes, tokens=1 + nodes)
        for depth, nodes in [(0, 0), *((n, n) for n in (1, 2, 3, 4, 5, 7))]
    )
    monkeypatch.setattr(choose_route, "draft_costs", lambda target, drafter, name: rounds)
    monkeypatch.setattr(choose_route, "measured_acceptance", lambda *parts: (right,))
    assert risk_worth_taking(None, None, "", most) == pytest.approx(risk, abs=0.03)  # type: ignore[arg-type]


DEAR = tuple(
    Times({"score": 0.01 * (1 + nodes), "propose": 0.02 * depth}, depth, nodes, tokens=1 + nodes)
    for depth, nodes in ((0, 0), (1, 1), (3, 3))
)


@pytest.mark.parametrize(("taken", "drafts"), [(0.0, False), (None, False), (1.5, True)])
def test_times_of_a_quiet_machine_rule_drafts_out_and_those_of_a_busy_one_do_not(
    taken: float | None, drafts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose_route, "timed_draft_costs", lambda *parts: Timed(DEAR, taken))
    monkeypatch.setattr(choose_route, "measured_acceptance", lambda *parts: (0.6,))
    target: Any = tiny_runner()
    found = choose_route.what_pays(target, Nothing(), "x", 3)
    recipe = found.instead("a net", Recipe(drafter=Nothing(), policy=Chain(), verifier=Match(), controller=Fixed(3)))
    assert isinstance(recipe.drafter, Route) == drafts and isinstance(recipe.controller, Priced) == drafts
    assert ("timed beside busy processes, so drafts are tried" in recipe.notes[0]) == drafts
    assert ("this is plain decoding" in recipe.notes[0]) != drafts


def test_a_recipe_that_decides_lengths_by_itself_is_taken_where_chains_pay() -> None:
    own = Recipe(drafter=Nothing(), policy=Chain(), verifier=Match(), controller=Fixed(3), notes=("its own",))
    pays = WhatPays(Nothing(), Fixed(2), "expected speed 1.2x; plain decoding where that pays more")
    made = pays.instead("a net", own)
    assert made.controller == Fixed(3) and made.notes == (
        "a net; a chain of the best fixed length: expected speed 1.2x",
    )
    lost = WhatPays(Nothing(), Fixed(0), "this is plain decoding", False).instead("a net", own)
    assert lost.controller == Fixed(0) and "this is plain decoding" in lost.notes[0]

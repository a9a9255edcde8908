"""tetris writes what plain decoding writes, whichever nodes win the places."""

from typing import Any

import pytest

from draftwood import recipes
from draftwood.controllers.budget import Budget
from draftwood.controllers.goodput import Goodput
from draftwood.core import node_budget
from draftwood.trees.ranked_chain import RankedChain
from ragged import TARGET, check_same_text

INNER = "speculative_sampling:draft=first:3"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "options", [{"nodes": 2, "extra": 2}, pytest.param({"nodes": 3, "width": 2}, marks=pytest.mark.slow)], ids=str
)
def test_the_text_is_plain_decodings_alone_and_in_a_ragged_batch(options: dict[str, Any], temperature: float) -> None:
    requests = check_same_text(recipes.build("tetris", TARGET, inner=INNER, **options), temperature)
    assert sum(r.stats.draft_tokens for r in requests) > 50


@pytest.mark.slow
def test_nodes_that_pay_leave_the_text_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Goodput, "_depth", lambda *args: 3)
    check_same_text(recipes.build("tetris", TARGET, inner=INNER), 1.0)


def test_requests_get_different_numbers_of_places_and_together_no_more_than_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, seen = node_budget.within_total, list[list[int]]()

    def watched(*args: Any) -> Any:
        kept = real(*args)
        seen.append((kept.sum(1) - 1).tolist())
        assert sum(seen[-1]) <= args[2]
        return kept

    monkeypatch.setattr(node_budget, "within_total", watched)
    check_same_text(recipes.build("tetris", TARGET, inner=INNER, nodes=2, extra=2), 0.0)
    several = [each for each in seen if len(each) > 1]
    assert any(max(each) > 2 and min(each) < 2 for each in several)


def test_drawn_drafts_have_scores_that_do_not_know_their_tokens() -> None:
    recipe = recipes.build("tetris", TARGET, inner=INNER, nodes=2, verifier="rejection")
    assert isinstance(recipe.policy, RankedChain) and isinstance(recipe.controller, Budget)

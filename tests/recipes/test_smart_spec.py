"""smart_spec writes what plain decoding writes, whatever depth it chooses and whoever else runs."""

from typing import Any

import pytest

from draftwood import recipes
from draftwood.controllers.goodput import Goodput
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.errors import CompositionError
from draftwood.verifiers.rejection import Rejection
from ragged import TARGET, check_same_text

INNER = "speculative_sampling:draft=first:3"


def drafted(requests: list[Request]) -> int:
    return sum(r.stats.draft_tokens for r in requests)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("inner", [INNER, "prompt_lookup"])
def test_the_text_is_plain_decodings_alone_and_in_a_ragged_batch(inner: str, temperature: float) -> None:
    check_same_text(recipes.build("smart_spec", TARGET, inner=inner), temperature)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_plain_decodings_when_the_depth_changes_all_the_time(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = 0

    def any_depth(self: Goodput, state: Any, rnd: Round, load: Any) -> int:
        nonlocal turn
        turn += 1
        return (0, 3, 1, 0, 0, 5, 2)[turn % 7]

    monkeypatch.setattr(Goodput, "_depth", any_depth)
    requests = check_same_text(recipes.build("smart_spec", TARGET, inner=INNER), temperature)
    assert drafted(requests) > 30


def test_a_depth_that_emits_its_draft_unverified_is_seen_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: drafts are believed."""
    from draftwood.verifiers.match import Match

    real = Match.verify

    def believe(self: Any, proposal: Any, target: Any, rnd: Any) -> Any:
        verdict = real(self, proposal, target, rnd)
        if proposal.tree.num_nodes > 1 and bool(proposal.tree.live[:, 1].all()):
            longer = verdict.count.clamp_min(1)
            path = verdict.path.clone()
            path[:, 1] = 1
            return type(verdict)(path, longer, verdict.next_token)
        return verdict

    monkeypatch.setattr(Goodput, "_depth", lambda *args: 2)
    monkeypatch.setattr(Match, "verify", believe)
    with pytest.raises(AssertionError):
        check_same_text(recipes.build("smart_spec", TARGET, inner=INNER), 0.0)


def test_drawn_drafts_are_judged_by_rejection() -> None:
    recipe = recipes.build("smart_spec", TARGET, inner=INNER, verifier="rejection")
    assert isinstance(recipe.verifier, Rejection) and recipe.lossless


@pytest.mark.parametrize("recipe", ["smart_spec", "tetris"])
def test_a_drafter_that_decides_itself_is_refused(recipe: str) -> None:
    with pytest.raises(CompositionError, match=r"(?s)suffix_decoding.*hint"):
        recipes.build(recipe, TARGET, inner="suffix_decoding")

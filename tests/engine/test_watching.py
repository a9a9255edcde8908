"""A watcher may learn from a round; one that raises is left out, and costs no request its drafts."""

from typing import Any

import pytest
import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.engine import step as steps
from draftwood.engine.engine import Engine
from draftwood.testing.runs import serve
from noisy_drafts import V, drafted, options, plain, prompts, rounds


def test_watcher_that_raises_once_is_left_out_and_the_others_are_still_asked() -> None:
    calls = {"bad": 0, "good": 0}

    def bad(*given: Any) -> None:
        calls["bad"] += 1
        if calls["bad"] == 3:
            raise ValueError("seen enough")

    def good(*given: Any) -> None:
        calls["good"] += 1

    engine = drafted(4, Fixed(4, 8), watch=(bad, good))
    got = serve(engine, prompts(4), options(4))
    assert [r.output for r in got] == plain(4)
    assert all(r.stats.disabled is None and r.stats.draft_tokens > 0 for r in got), "its failure costs no draft"
    assert calls["bad"] == 3 < calls["good"] == engine.rounds and not engine.closed
    assert min(rounds(got)) > 0, rounds(got)


def test_without_the_guard_a_watcher_would_close_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(*given: Any) -> None:
        raise ValueError("seen enough")

    def unguarded(e: Engine, *given: Any) -> None:
        for watcher in e.recipe.watch:
            watcher(*given)

    monkeypatch.setattr(steps, "show_watchers", unguarded)
    engine = drafted(2, Fixed(4, 8), watch=(bad,))
    with pytest.raises(ValueError, match="seen enough"):
        serve(engine, prompts(2), options(2))
    assert engine.closed


def test_interrupt_inside_a_watcher_passes() -> None:
    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(drafted(2, Fixed(4, 8), watch=(interrupted,)), prompts(2), options(2))


def test_tensors_of_a_round_can_be_learnt_from() -> None:
    """Weights times what the watcher was shown, back through autograd: features, logits, drafted tokens, roots."""
    slopes: list[float] = []

    def learn(rnd: Round, outcome: Outcome, output: Any) -> None:
        weight = torch.ones(output.logits.shape[1], dtype=torch.float64, requires_grad=True)
        table = torch.ones(V, 2, requires_grad=True)
        assert rnd.lengths.shape == rnd.slots.shape and output.tokens is not None
        read = torch.nn.functional.embedding(output.tokens.ids, table).sum()
        drafts = torch.nn.functional.embedding(outcome.proposal.tree.tokens, table).sum()
        loss = (output.logits * weight).sum() + (output.hidden * weight[0]).sum() + read + drafts
        (loss + (weight[rnd.slots] * rnd.lengths).sum()).backward()
        slopes.append(float(weight.grad.abs().sum()))  # type: ignore[union-attr]

    engine = drafted(2, Fixed(4, 8), watch=(learn,))
    got = serve(engine, prompts(2), options(2))
    assert not engine.failed_watchers and len(slopes) == engine.rounds and min(slopes) > 0
    assert [r.output for r in got] == plain(2)


def test_tensors_of_inference_could_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a round's own tensors, as they were made."""
    errors: list[str] = []

    def learn(rnd: Round, outcome: Outcome, output: Any) -> None:
        weight = torch.ones(output.logits.shape[1], dtype=torch.float64, requires_grad=True)
        try:
            (output.logits * weight).sum().backward()
        except RuntimeError as error:
            errors.append(str(error))

    def as_made(e: Engine, *given: Any) -> None:
        with torch.inference_mode(False), torch.enable_grad():
            for watcher in e.recipe.watch:
                watcher(*given)

    monkeypatch.setattr(steps, "show_watchers", as_made)
    serve(drafted(2, Fixed(4, 8), watch=(learn,)), prompts(2), options(2))
    assert errors and "Inference tensors cannot be saved for backward" in errors[0]


def test_what_a_watcher_does_to_its_copies_changes_no_text() -> None:
    def scribble(rnd: Round, outcome: Outcome, output: Any) -> None:
        for x in (output.logits, output.hidden, outcome.tokens, outcome.verdict.path, outcome.proposal.tree.tokens):
            x.zero_()
        rnd.slots.zero_()

    engine = drafted(3, Fixed(4, 8), watch=(scribble,))
    got = serve(engine, prompts(3), options(3))
    assert [r.output for r in got] == plain(3) and not engine.failed_watchers
    assert min(rounds(got)) > 0, rounds(got)

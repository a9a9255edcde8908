"""Controllers and watchers, guarded: one that raises costs its own requests their drafts, or itself, never the engine."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from draftwood.core.forward import ForwardOutput
from draftwood.core.limit import Limit, Load
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.engine.drafting import disable, log

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine


def plan_limit(e: "Engine", rnd: Round, load: Load) -> Limit:
    """The controller's limit; nothing is drafted for sequences that it fails on."""
    try:
        return e.recipe.controller.plan(e.controller_state, rnd, load)
    except Exception as error:
        _disable(e, rnd, f"plan: {type(error).__name__}: {error}")
        return Limit.of([0] * rnd.batch, [0] * rnd.batch, e.device)


def update_controller(e: "Engine", rnd: Round, outcome: Outcome) -> None:
    """The round's outcome to the controller. One that fails plans no more drafts for these sequences."""
    try:
        e.recipe.controller.update(e.controller_state, rnd, outcome)
    except Exception as error:
        _disable(e, rnd, f"update: {type(error).__name__}: {error}")


def _disable(e: "Engine", rnd: Round, reason: str) -> None:
    disable(e, rnd, {b: reason for b, slot in enumerate(rnd.host_slots) if slot not in e.disabled})


def show_watchers(e: "Engine", rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
    """The round's outcome to all watchers. They may learn from it: tensors are copies that autograd takes. One that fails
    is asked no more."""
    watchers = [watcher for watcher in e.recipe.watch if watcher not in e.failed_watchers]
    if not watchers:
        return
    with torch.inference_mode(False), torch.enable_grad():
        told, seen = _copied_outcome(outcome), _copied_output(output)
        for watcher in watchers:
            try:
                watcher(rnd, told, seen)
            except Exception as error:
                e.failed_watchers.append(watcher)
                log.warning("a watcher is left out from now on: %s: %s", type(error).__name__, error, exc_info=True)


def _copied_outcome(outcome: Outcome) -> Outcome:
    v = outcome.verdict
    verdict = replace(v, path=v.path.clone(), count=v.count.clone(), next_token=v.next_token.clone())
    return replace(outcome, verdict=verdict, tokens=outcome.tokens.clone())


def _copied_output(output: ForwardOutput) -> ForwardOutput:
    """What a pass computed; the tensors that only index it stay as they are."""
    return replace(
        output,
        logits=output.logits.clone(),
        hidden=output.hidden.clone(),
        features={tap: x.clone() for tap, x in output.features.items()},
        best=None if output.best is None else output.best.clone(),
        logits_index=output.logits_index.clone(),
        token_index=None if output.token_index is None else output.token_index.clone(),
    )

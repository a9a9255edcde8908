"""Controllers and watchers, guarded: one that raises costs its own requests their drafts, or itself, never the engine."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from draftwood.core.forward import ForwardOutput
from draftwood.core.limit import Limit, Load
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.engine.copies import copied, copied_round
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


def free_controller(e: "Engine", slots: Sequence[int]) -> None:
    """Free slots of the controller. Where it fails, what it knows of a slot may be the last request's, so nothing is drafted
    for the next one there."""
    try:
        e.recipe.controller.free(e.controller_state, slots)
    except Exception as error:
        reason = f"controller's free: {type(error).__name__}: {error}"
        log.warning("the next requests in slots %s go on without drafts: %s", list(slots), reason)
        e.disabled |= dict.fromkeys(slots, reason)


def _disable(e: "Engine", rnd: Round, reason: str) -> None:
    disable(e, rnd, {b: reason for b, slot in enumerate(rnd.host_slots) if slot not in e.disabled})


def show_watchers(e: "Engine", rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
    """The round's outcome to all watchers. They may learn from it: tensors are copies that autograd takes, gradients are on,
    and between rounds weights may change. One that fails is asked no more."""
    watchers = [watcher for watcher in e.recipe.watch if watcher not in e.failed_watchers]
    if not watchers:
        return
    with torch.inference_mode(False), torch.enable_grad():
        shown = copied_round(rnd), copied(outcome), copied(output)
        for watcher in watchers:
            try:
                watcher(*shown)
            except Exception as error:
                e.failed_watchers.append(watcher)
                log.warning("a watcher is left out from now on: %s: %s", type(error).__name__, error, exc_info=True)

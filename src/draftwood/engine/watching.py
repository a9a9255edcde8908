"""The watchers' part of a round. One that raises is left out from then on."""

from collections.abc import Callable
from copy import copy
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from draftwood.core.forward import ForwardInput, ForwardOutput
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Recorder, Watcher
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Outcome, Verdict
from draftwood.engine.drafting import log

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine

_RECORDS = (Outcome, Proposal, TokenTree, DraftProbs, Verdict, ForwardOutput, ForwardInput)


def show_watchers(e: "Engine", rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
    """The round's outcome to all watchers. They may learn from it and change weights, because no round runs: gradients are
    enabled, and tensors are copies, since later rounds overwrite the round's own and autograd takes none that was made in
    inference mode. Then to all recorders, which get the tensors themselves: copies of all logits cost more than they do."""
    watchers = [watcher for watcher in e.recipe.watch if watcher not in e.failed_watchers]
    if watchers:
        with torch.inference_mode(False), torch.enable_grad():
            shown = rnd.take(list(range(rnd.batch))), _copied(outcome, {}), _copied(output, {})
            for watcher in watchers:
                _guarded(e, watcher, partial(watcher, *shown))
    for recorder in e.recipe.record:
        if recorder not in e.failed_watchers:
            _guarded(e, recorder, partial(recorder.record, rnd, outcome))


def _guarded(e: "Engine", watcher: Watcher | Recorder, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:
        e.failed_watchers.append(watcher)
        log.warning("a watcher is left out from now on: %s: %s", type(error).__name__, error, exc_info=True)


def _copied(x: Any, made: dict[int, Tensor]) -> Any:
    """A record with tensors of its own, in all records inside it. Lists, numbers and functions stay as they are. `made`:
    copies by the id of the tensor, because several fields may hold one."""
    if isinstance(x, Tensor):
        if id(x) not in made:
            made[id(x)] = x.clone()
        return made[id(x)]
    if isinstance(x, dict):
        return {key: _copied(each, made) for key, each in x.items()}
    if isinstance(x, _RECORDS):
        found = copy(x)
        for field in fields(x):
            object.__setattr__(found, field.name, _copied(getattr(x, field.name), made))
        return found
    return x

"""Copies of a round's records for those who look on: a round's own tensors are overwritten by later ones, and autograd takes
none that was made in inference mode."""

from copy import copy
from dataclasses import fields
from typing import Any

from torch import Tensor

from draftwood.core.forward import ForwardInput, ForwardOutput
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Outcome, Verdict

_RECORDS = (Outcome, Proposal, TokenTree, DraftProbs, Verdict, ForwardOutput, ForwardInput)


def copied(record: Any) -> Any:
    """The same record with tensors of its own, in all records inside it. Lists, numbers and functions stay as they are."""
    return _copied(record, {})


def _copied(x: Any, made: dict[int, Any]) -> Any:
    if isinstance(x, Tensor):
        if id(x) not in made:  # several fields may hold one tensor
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


def copied_round(rnd: Round) -> Round:
    """The same sequences, with tensors of their own."""
    return Round(
        rnd.slots.clone(),
        rnd.lengths.clone(),
        rnd.requests,
        origin=copied(rnd.origin),
        columns=copied(rnd.columns),
        target=rnd.target,
        noise=rnd.noise,
        stream=rnd.stream,
        host_slots=rnd.host_slots,
        host_lengths=rnd.host_lengths,
    )

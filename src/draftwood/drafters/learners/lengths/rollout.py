"""How far a drafter's own chains agree with a text, from all of its positions at once.

    text      x0 ─ x1 ─ x2 ─ x3 ─ x4        branches leave the text behind every root and never see one another
                   │    │
                   a    a'                  a = x2? a' = x3? Where it is so, the next step runs it, and so on
                   │    │
                   b    b'

These are the drafter's own passes, in the backend it drafts with: a branch is a path of a tree in staged cache entries. What
a step feeds in is the drafter's best token. Branches that have left the text are not run any further, since what they write
behind a wrong token does not count. A window of the text is staged at a time, so that the trees stay small.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import ALL, ForwardInput, HostInput
from draftwood.core.host import host
from draftwood.core.protocols import Drafter
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.level_passes import wanted_logits
from draftwood.drafters.on_features.features import Features
from draftwood.errors import CompositionError

WINDOW = 128  # tokens of the text that are staged at a time


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """The passes of one drafter over one text. `late`: how many of its first tokens are not run; `inputs`: what each other
    token is read with; `run`: (pass, level) -> what the tokens leave for those behind them, and the best tokens."""

    runner: Any
    device: torch.device
    late: int
    inputs: Float[Tensor, "T d"] | None
    run: Callable[[ForwardInput, int], tuple[Tensor | None, Int[Tensor, "U"]]]


def taps_of(drafter: Drafter) -> frozenset[int]:
    """The target's features that a chain of this drafter begins with. CompositionError if it has no chains to follow."""
    if isinstance(drafter, Features):
        return frozenset(drafter.model.taps)
    if isinstance(drafter, DraftModel):
        return frozenset()
    raise CompositionError(
        f"lengths are learned from the chains of a head on features or of a draft model, not from {type(drafter).__name__}\n"
        "hint: inner=eagle3 or inner=fast_draft"
    )


@torch.no_grad()
def agreed(
    drafter: Drafter,
    text: Sequence[int],
    features: Mapping[int, Float[Tensor, "T H"]],
    roots: Sequence[int],
    most: int,
) -> list[int]:
    """Of each root, the position of a token of `text`: how many tokens the drafter writes behind it that are those of the
    text, one after another, at most `most`."""
    if not roots or not most:
        return [0] * len(roots)
    passes = _passes(drafter, features, len(text) + (most + 1) * WINDOW)
    runner, late = passes.runner, passes.late
    ids = list(text[late:])
    runner.admit(0, [])
    wanted, counts = sorted({root - late for root in roots}), dict[int, int]()
    for first in range(0, len(ids), WINDOW):
        part = ids[first : first + WINDOW]
        own = [at for at in wanted if first <= at < first + len(part)]
        runner.reserve([0], [len(part) + len(own) * most])
        counts |= _window(passes, ids, first, part, own, most)
        runner.commit([0], [list(range(len(part)))], [part])
    return [counts[root - late] for root in roots]


def _window(
    passes: Passes, ids: Sequence[int], first: int, part: list[int], own: list[int], most: int
) -> dict[int, int]:
    """Runs a window of the text, and the branches of the places `own` of it."""
    counts, size = dict.fromkeys(own, 0), len(part)
    hidden = None if passes.inputs is None else passes.inputs[first : first + size]
    at = list(range(size))
    places = [place - first for place in own]
    x = _input(passes, part, at, [i - 1 for i in at], [first + i for i in at], places, hidden)
    left, best = passes.run(x, 0)
    branches, entries, tokens = own, places, host(best)
    left = None if left is None else left[entries]
    used = size
    for level in range(1, most + 1):
        good = [i for i, place in enumerate(branches) if ids[place + level : place + level + 1] == [tokens[i]]]
        branches, entries = [branches[i] for i in good], [entries[i] for i in good]
        for place in branches:
            counts[place] += 1
        if not branches or level == most:
            break
        new = list(range(used, used + len(branches)))
        at = list(range(len(branches)))
        hidden = None if left is None else left[good]
        fed = [tokens[i] for i in good]
        x = _input(passes, fed, new, entries, [place + level for place in branches], at, hidden)
        left, best = passes.run(x, level)
        tokens, entries, used = host(best), new, used + len(new)
    return counts


def _input(
    passes: Passes,
    ids: list[int],
    entries: list[int],
    parents: list[int],
    positions: list[int],
    want: list[int],
    hidden: Tensor | None,
) -> ForwardInput:
    return ForwardInput.of(HostInput(ids, [0] * len(ids), entries, parents), positions, want, passes.device, hidden)


def _passes(drafter: Drafter, features: Mapping[int, Float[Tensor, "T H"]], capacity: int) -> Passes:
    if isinstance(drafter, Features):
        model = drafter.model.open(1, capacity)

        def run(x: ForwardInput, level: int) -> tuple[Tensor | None, Tensor]:
            left, logits = model.execute(x)
            return left, _named(logits, model.ids)

        # Index t of its cache is the pair of a feature and the next token.
        fused = model.fuse([features[tap] for tap in model.taps])[:-1]
        return Passes(model, fused.device, 1, fused, run)
    assert isinstance(drafter, DraftModel)
    whole, plan, ids = drafter.model.open(1, capacity), drafter.plan, drafter.ids

    def follow(x: ForwardInput, level: int) -> tuple[Tensor | None, Tensor]:
        if not x.want.numel():
            whole.execute(x)
            return None, x.want
        return None, _named(wanted_logits(whole, x, None, plan if level else ALL)[0], ids)

    return Passes(whole, drafter.model.info.device, 0, None, follow)


def _named(logits: Float[Tensor, "U W"], ids: Int[Tensor, "W"] | None) -> Int[Tensor, "U"]:
    best = logits.argmax(-1)
    return best if ids is None else ids.to(best.device)[best]

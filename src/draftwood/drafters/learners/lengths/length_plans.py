"""Training plans of the nets that decide how long a draft is."""

from dataclasses import replace

from draftwood.controllers.stopping.predicted_length import EMBEDDING
from draftwood.core.forward import FINAL
from draftwood.core.protocols import Drafter, Runner
from draftwood.core.train_plan import Learn, Rate, TrainPlan
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.learners.lengths.acceptance import Acceptance
from draftwood.drafters.learners.lengths.length import Length
from draftwood.drafters.learners.lengths.rollout import taps_of
from draftwood.drafters.learners.plans import fresh, shape_of
from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.files.store import BLOCK
from draftwood.drafters.nets.make_drafter import states_width
from draftwood.errors import OptionError, need_at_least

LONGEST = 64  # tokens of a labelled draft


def length_plan(
    target: Runner,
    drafter: Drafter,
    *,
    most: int,
    wide: int | None,
    blocks: int,
    short: float,
    rate: float,
    seed: int,
    share: float,
    inner: str,
) -> TrainPlan:
    """A net on the target's embedding and feature. `inner`: the name of the drafter, which its weights depend on."""
    shape = shape_of(target)
    taps_of(drafter)
    wide = max(BLOCK, shape.hidden_size // 3 // BLOCK * BLOCK) if wide is None else wide
    need_at_least("length", most=(most, 1), wide=(wide, 1), blocks=(blocks, 1))
    if most > LONGEST:
        raise OptionError(f"most cannot be {most}\nhint: at most {LONGEST}; every position is drafted so far")
    _check_share(share)
    if not short > 0:
        raise OptionError(f"short cannot be {short}\nhint: more than 0, such as 3")
    layer = replace(shape, num_layers=1, hidden_size=wide)
    config = HeadConfig("length", layer, shape.hidden_size, (EMBEDDING, FINAL), rows=1, stages=most, depth=blocks)
    module = fresh(config, target, seed)
    learner = Length(module, drafter, most, short, share)
    return TrainPlan((Learn(learner, Rate(peak=rate)),), module, config, notes=_notes(inner))


def acceptance_plan(
    target: Runner,
    drafter: Drafter,
    *,
    blocks: int,
    tied: bool,
    mixed: float,
    weight: float,
    rate: float,
    seed: int,
    share: float,
    inner: str,
) -> TrainPlan:
    """A net on the hidden states of a draft model."""
    shape, width = shape_of(target), states_width(drafter)
    need_at_least("acceptance", blocks=(blocks, 1))
    _check_share(share)
    if not 0 <= mixed <= 1:
        raise OptionError(f"mixed cannot be {mixed}\nhint: a share of the tokens, from 0 to 1")
    if not 0 < weight < float("inf"):
        raise OptionError(f"weight cannot be {weight}\nhint: more than 0, such as 6")
    layer = replace(shape, num_layers=1, hidden_size=width)
    config = HeadConfig("acceptance", layer, shape.hidden_size, (), rows=1, depth=blocks, tied=tied)
    module = fresh(config, target, seed)
    assert isinstance(drafter, DraftModel)
    learner = Acceptance(module, drafter.model, drafter.ids, mixed, weight, share)
    return TrainPlan((Learn(learner, Rate(peak=rate, warmup=0.03)),), module, config, notes=_notes(inner))


def _notes(inner: str) -> dict[str, object]:
    """Acceptance is measured with drafts in every round: whether they pay on this machine is another question."""
    return {"ids": None, "options": {"inner": inner, "size": "paper"}}


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise OptionError(f"share cannot be {share}\nhint: of the positions, more than 0 and at most 1")

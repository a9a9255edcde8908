"""The training plan of a GriffinNet: stage j unrolls j passes."""

from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.forward import FINAL
from draftwood.core.protocols import Runner
from draftwood.core.train_plan import Learn, Rate, TrainPlan
from draftwood.drafters.learners.plans import MOST_UNROLLED, fresh, shape_of
from draftwood.drafters.learners.unrolling.aligned import Aligned
from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.errors import OptionError, need_at_least

LATER = 0.6  # of the first stage's rate


def aligned_plan(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    stages: int,
    first: int,
    near: int,
    regress: float,
    soft: float,
    top: float,
    noise: float,
    rate: float,
    muon: bool,
    seed: int,
) -> TrainPlan:
    """Stages `first` to `stages`, in equal parts of the steps. `top` counts from the second one on."""
    need_at_least("griffin", stages=(stages, 1), first=(first, 1), near=(near, 1))
    if not first <= stages <= MOST_UNROLLED:
        raise OptionError(f"griffin: stages cannot be {stages}\nhint: from first={first} to {MOST_UNROLLED}")
    for name, value in (("regress", regress), ("soft", soft), ("top", top), ("noise", noise)):
        if not 0 <= value < float("inf"):
            raise OptionError(f"griffin: {name} cannot be {value}\nhint: 0 or more")
    shape = shape_of(target)
    layer = replace(shape, num_layers=1, qk_norm=False)
    config = HeadConfig("griffin", layer, shape.hidden_size, (FINAL,), rows=len(keep))
    module = fresh(config, target, seed)
    with torch.no_grad():
        module.side_down.weight.zero_()  # at first an EAGLE head: the token is read once
    learns = tuple(
        Learn(
            Aligned(module, keep, j, regress, soft, top if j > 1 else 0.0, near=near, noise=noise),
            Rate(peak=rate if j == 1 else LATER * rate, muon=muon),
            name=f"{j} passes" if j > 1 else "1 pass",
        )
        for j in range(first, stages + 1)
    )
    # Acceptance is measured with drafts in every round: whether they pay on this machine is another question.
    return TrainPlan(learns, module, config, notes={"options": {"size": "paper"}})

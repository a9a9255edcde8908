"""The training plan of deeper heads, with or without an adversarial term."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.forward import FINAL
from draftwood.core.protocols import Runner
from draftwood.core.train_plan import Rate, TrainPlan
from draftwood.drafters.learners.plans import feature_plan, parallel_plan
from draftwood.drafters.learners.unrolling.adversarial import JUDGE, Adversarial
from draftwood.drafters.nets.modules.discriminator import Discriminator
from draftwood.errors import OptionError, need_at_least

_BASE: dict[str, dict[str, Any]] = {
    "eagle": {"unroll": 3, "regress": 0.2, "rate": 4e-3, "muon": True},
    "medusa": {"stages": 4, "rate": 1e-3, "share": 0.5},
}  # what the recipes of the heads of one layer ask of their plans
OF_JUDGE = Rate(peak=1e-4)


def deeper_plan(
    target: Runner,
    keep: Int[Tensor, "W"],
    flavour: str,
    asked: Mapping[str, Any],
    *,
    layers: int,
    adversarial: float,
    judged: float,
    seed: int,
) -> TrainPlan:
    """`flavour`: the head that grows deeper, "eagle" or "medusa"; `asked`: what a user asked of its own plan. Layers behind
    the first one add nothing at first. Without `adversarial` the base head's own learner trains."""
    need_at_least("koala", layers=(layers, 1))
    more = {**_BASE[flavour], **asked}
    for name in sorted(set(more) - set(_BASE[flavour])):
        (other,) = (each for each in _BASE if name in _BASE[each])
        raise OptionError(f"koala: {name} is used only with flavour={other}\nhint: leave out {name}")
    if not 0 <= adversarial < float("inf"):
        raise OptionError(
            f"koala: adversarial cannot be {adversarial}\nhint: 0 for none, or a small weight such as 0.05"
        )
    if not 0 < judged <= 1:
        raise OptionError(f"koala: judged cannot be {judged}\nhint: of the positions, more than 0 and at most 1")
    if flavour == "eagle":
        plan = feature_plan("deep_eagle", target, keep, taps=(FINAL,), depth=layers, seed=seed, **more)
    else:
        plan = parallel_plan("deep_medusa", target, keep, depth=layers, seed=seed, **more)
    net: Any = plan.net
    if flavour == "eagle":
        with torch.no_grad():
            for layer in net.more:
                layer.out.weight.zero_()
                layer.down.weight.zero_()
    # Acceptance is measured with drafts in every round: whether they pay on this machine is another question.
    plan = replace(plan, notes={"options": {"flavour": flavour, "size": "paper"}})
    if not adversarial:
        return plan
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        judge = Discriminator(target.info.hidden_size).to(target.info.device)
    (learn,) = plan.learns
    base: Any = learn.learner
    learner = Adversarial(base, judge, adversarial, judged)
    return replace(plan, stages=(replace(learn, learner=learner, rates={JUDGE: OF_JUDGE}),), beside=judge)

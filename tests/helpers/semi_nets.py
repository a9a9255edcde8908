"""Semi-autoregressive nets for the small targets of `own_layers`, trained for a moment."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from block_nets import lesson
from draftwood.drafters.learners.plans import semi_plan
from draftwood.drafters.nets.files.store import Head
from draftwood.testing.parts.tiny import CONFIG
from own_layers import TARGETS

BLOCK = 2


def trained(name: str) -> Head:
    """For a target of `own_layers` by its name."""
    return _trained("float64" if name == "device" else name)  # the same weights


@cache
def _trained(name: str, steps: int = 60) -> Head:
    sizes: dict[str, Any] = {"block": BLOCK, "inner": None, "noise": 0.0, "glance": 0.4}
    plan = semi_plan(TARGETS[name](), torch.arange(CONFIG.vocab_size), rate=1e-3, seed=1, muon=False, **sizes)
    shown, net = lesson(name), plan.net
    assert net is not None
    net.float()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(steps):
        for _, loss, _ in plan.learns[0].learner.losses(replace(shown, seed=step), step / steps):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return Head(plan.config, {key: x.detach().clone() for key, x in net.state_dict().items()}, None, "", {})

"""Block nets for the small targets of `own_layers`, trained for a moment so that some of their drafts are accepted."""

from functools import cache
from typing import Any

import torch

from draftwood.core.forward import FINAL
from draftwood.core.protocols import Runner
from draftwood.core.train_plan import Shown, TrainPlan
from draftwood.drafters.learners.plans import block_plan
from draftwood.drafters.nets.files.store import Head
from draftwood.testing.parts.tiny import CONFIG
from draftwood.train.loop.teacher import Teacher
from own_layers import TARGETS, served

AHEAD = 3


def plan_of(target: Runner, layers: int = 2, **more: Any) -> TrainPlan:
    sizes = {"stages": AHEAD, "layers": layers, "inner": None, "share": 1.0, "decay": 0.8, **more}
    keep = torch.arange(CONFIG.vocab_size)
    return block_plan(target, keep, taps=(1, 2, 3), rate=1e-3, seed=1, muon=False, **sizes)


@cache
def lesson(name: str) -> Shown:
    """What the target writes, as it sees it."""
    target = TARGETS[name]()
    requests = served(target, None, 0.0)[0]
    texts = [[*r.prompt, *r.output] for r in requests]
    length = max(map(len, texts))
    ids = torch.tensor([text + [0] * (length - len(text)) for text in texts])
    at = torch.arange(length)
    live = at < torch.tensor([len(text) for text in texts])[:, None]
    answer = live & (at >= torch.tensor([len(r.prompt) for r in requests])[:, None])
    shown = Teacher(target).show(ids, answer, live, frozenset({1, 2, 3, FINAL}), seed=0)
    return Shown(
        ids, ids, answer, live, {tap: x.float() for tap, x in shown.features.items()},
        lambda some: target.embed(some).float(), lambda keep: shown.rows(keep).float(),
    )  # fmt: skip


def trained(name: str) -> Head:
    """For a target of `own_layers` by its name."""
    return _trained("float64" if name == "device" else name)  # the same weights


@cache
def _trained(name: str, layers: int = 2, steps: int = 40) -> Head:
    plan, shown = plan_of(TARGETS[name](), layers), lesson(name)
    assert plan.net is not None
    plan.net.float()
    optimiser = torch.optim.Adam(plan.net.parameters(), lr=1e-2)
    for _ in range(steps):
        for _, loss, _ in plan.learns[0].learner.losses(shown, 0.0):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    tensors = {key: x.detach().clone() for key, x in plan.net.state_dict().items()}
    return Head(plan.config, tensors, None, "", {})

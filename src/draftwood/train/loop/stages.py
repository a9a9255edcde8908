"""A learner in its stage of the run: its steps, learning rate and optimisers."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.core.train_plan import Learn, Rate, TrainPlan
from draftwood.errors import TrainError
from draftwood.train.loop.muon import Muon

LM_HEAD = "rows"  # the parameter group of LM-head rows, which Muon does not train; checkpoints hold the name


class Active:
    """A learner in its stage [first, last), with its optimisers."""

    def __init__(self, name: str, stage: Learn, first: int, last: int) -> None:
        self.name, self.stage, self.first, self.last = name, stage, first, last
        self.groups = dict(stage.learner.groups())
        self.optimisers = {
            group: optimisers(ps, stage.rate_of(group), muon=stage.rate_of(group).muon and group != LM_HEAD)
            for group, ps in self.groups.items()
        }

    def step(self, shown: Any, at: int, kind: torch.dtype) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        progress = (at - self.first) / max(self.last - self.first, 1)
        for group, optimiser in ((group, own) for group, several in self.optimisers.items() for own in several):
            for each in optimiser.param_groups:
                each["lr"] = rate_at(self.stage.rate_of(group), progress)
            optimiser.zero_grad(set_to_none=True)
        device = shown.ids.device.type
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda" and kind == torch.bfloat16):
            for _, loss, figures in self.stage.learner.losses(shown, progress):
                loss.backward()
                yield loss.detach(), figures
        for group, parameters in self.groups.items():
            nn.utils.clip_grad_norm_(parameters, self.stage.rate_of(group).clip)
            for optimiser in self.optimisers[group]:
                optimiser.step()

    def _moments(self) -> Iterator[tuple[str, nn.Parameter, torch.optim.Optimizer]]:
        """(prefix in checkpoints, parameter, its optimiser). Each stage has moments of its own."""
        for group, parameters in self.groups.items():
            for i, p in enumerate(parameters):
                owner = next(o for o in self.optimisers[group] if any(p is x for x in o.param_groups[0]["params"]))
                yield f"moments/{self.name}@{self.first}/{group}/{i}/", p, owner

    def tensors(self) -> dict[str, Tensor]:
        return {
            prefix + key: torch.as_tensor(value)
            for prefix, p, owner in self._moments()
            for key, value in owner.state.get(p, {}).items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        for prefix, p, owner in self._moments():
            own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            if any(t.ndim and t.shape != p.shape for t in own.values()):
                raise TrainError(f"the checkpoint's moments of {self.name} have other shapes than its weights")
            if own:
                on_host = "step" if not p.is_cuda else ""
                owner.state[p] = {k: t.clone().to("cpu" if k == on_host else p.device) for k, t in own.items()}


def optimisers(parameters: list[nn.Parameter], rate: Rate, muon: bool) -> list[torch.optim.Optimizer]:
    """Muon for matrices, AdamW for the rest; each parameter belongs to one of them."""
    matrices = [p for p in parameters if muon and p.ndim == 2]
    rest = [p for p in parameters if not muon or p.ndim != 2]
    found: list[torch.optim.Optimizer] = [Muon(matrices, lr=rate.peak)] if matrices else []
    if rest:
        fused = any(p.is_cuda for p in rest)
        found += [torch.optim.AdamW(rest, lr=rate.peak, betas=rate.betas, weight_decay=rate.decay, fused=fused)]
    return found


def stage_at(plan: TrainPlan, step: int, steps: int) -> tuple[Learn, int, int] | None:
    """(stage, first, last) of a step out of `steps`; the stage covers [first, last)."""
    shares = sum(stage.share for stage in plan.learns)
    first = 0
    for i, stage in enumerate(plan.learns):
        passed = sum(s.share for s in plan.learns[: i + 1]) / shares
        last = steps if i + 1 == len(plan.learns) else round(steps * passed)
        if first <= step < last:
            return stage, first, last
        first = last
    return None


def rate_at(rate: Rate, progress: float) -> float:
    """Linear warm-up, then a cosine from the peak to the floor."""
    if progress < rate.warmup:
        return rate.peak * (progress + 1e-3) / (rate.warmup + 1e-3)
    after = (progress - rate.warmup) / max(1 - rate.warmup, 1e-9)
    return rate.peak * (rate.floor + (1 - rate.floor) * 0.5 * (1 + math.cos(math.pi * min(after, 1.0))))

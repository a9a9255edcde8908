"""The one loop: show a batch, let every learner yield losses, step. It knows no drafter and has no modes.

Several plans may share the loop, so one pass of the target teaches all of them. Batches, rates and noise are functions of
the step alone: a run that was killed and resumed ends where an unbroken one does.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.core.plan import Learn, Rate, TrainPlan
from draftwood.errors import TrainError
from draftwood.train import checkpoint
from draftwood.train.batches import Batches
from draftwood.train.capture import Teacher

WARM, TIMED = 3, 6  # steps before the clock counts, steps it counts


@dataclass(frozen=True, slots=True)
class Settings:
    """`steps` None: as many as fit into `minutes`, found once and stored."""

    folder: Path
    steps: int | None = None
    minutes: float | None = None
    seed: int = 0
    save_every: float = 120.0  # seconds
    measure_every: float = 180.0
    pause_after: float | None = None  # minutes; then save and stop, to go on another time


@dataclass(frozen=True, slots=True)
class Report:
    """One step, as watchers see it."""

    step: int
    steps: int
    tokens: int  # positions of the batch, padding left out
    losses: dict[str, float]
    figures: dict[str, dict[str, float]]
    seconds: float  # of this run so far


class _Active:
    """A learner in its stage, with its optimisers."""

    def __init__(self, name: str, stage: Learn, first: int, last: int) -> None:
        self.name, self.stage, self.first, self.last = name, stage, first, last
        self.groups = dict(stage.learner.groups())
        rate = stage.rate
        fused = any(p.is_cuda for ps in self.groups.values() for p in ps)
        self.optimisers = {
            group: torch.optim.AdamW(ps, lr=rate.peak, betas=rate.betas, weight_decay=rate.decay, fused=fused)
            for group, ps in self.groups.items()
        }

    def step(self, shown: Any, at: int, kind: torch.dtype) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        progress = (at - self.first) / max(self.last - self.first, 1)
        for optimiser in self.optimisers.values():
            for each in optimiser.param_groups:
                each["lr"] = rate_at(self.stage.rate, progress)
            optimiser.zero_grad(set_to_none=True)
        device = shown.ids.device.type
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda" and kind == torch.bfloat16):
            for _, loss, figures in self.stage.learner.losses(shown, progress):
                loss.backward()
                yield loss.detach(), figures
        for group, parameters in self.groups.items():
            nn.utils.clip_grad_norm_(parameters, self.stage.rate.clip)
            self.optimisers[group].step()

    @property
    def _prefix(self) -> str:
        return f"moments/{self.name}@{self.first}"  # a later stage of the same plan begins with moments of its own

    def tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for group, optimiser in self.optimisers.items():
            for i, p in enumerate(self.groups[group]):
                for key, value in optimiser.state.get(p, {}).items():
                    found[f"{self._prefix}/{group}/{i}/{key}"] = torch.as_tensor(value)
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        for group, optimiser in self.optimisers.items():
            for i, p in enumerate(self.groups[group]):
                prefix = f"{self._prefix}/{group}/{i}/"
                own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
                if own:
                    on_host = "step" if not p.is_cuda else ""
                    optimiser.state[p] = {k: t.clone().to("cpu" if k == on_host else p.device) for k, t in own.items()}


def rate_at(rate: Rate, progress: float) -> float:
    """Linear warm-up, then a cosine from the peak to the floor."""
    if progress < rate.warmup:
        return rate.peak * (progress + 1e-3) / (rate.warmup + 1e-3)
    after = (progress - rate.warmup) / max(1 - rate.warmup, 1e-9)
    return rate.peak * (rate.floor + (1 - rate.floor) * 0.5 * (1 + math.cos(math.pi * min(after, 1.0))))


class Trainer:
    """Plans by name, a teacher, batches and settings; `run` does the work and may be called again to go on."""

    def __init__(
        self, plans: Mapping[str, TrainPlan], teacher: Teacher, batches: Batches, settings: Settings, identity: str = ""
    ) -> None:
        self.plans, self.teacher, self.batches, self.settings = dict(plans), teacher, batches, settings
        self.identity = identity  # of data and options: a checkpoint of other ones is refused
        self.step, self.steps = 0, settings.steps or 0
        self.tokens = 0
        self._active: dict[str, _Active] = {}
        needs = [stage.learner.needs for plan in plans.values() for stage in plan.learns]
        self.taps = frozenset(tap for need in needs for tap in need.taps)

    def run(
        self,
        watch: Callable[[Report], None] = lambda report: None,
        measure: Callable[[int], None] = lambda step: None,
    ) -> bool:
        """True when the last step is done, False when it paused."""
        self._resume()
        if not self.steps:
            self.steps = self._fit()
            self._save()
        started = saved = measured = perf_counter()
        pending: tuple[Report, dict[str, Tensor], dict[str, dict[str, Tensor]], tuple[int, ...]] | None = None
        while self.step < self.steps:
            batch = self.batches.at(self.step)
            losses, figures, tokens = self._one(self.step, batch.to(self.teacher.device))
            if pending is not None:
                watch(self._told(*pending))
            now = perf_counter()
            report = Report(self.step, self.steps, tokens, {}, {}, now - started)
            pending = report, losses, figures, batch.numbers
            self.step, self.tokens = self.step + 1, self.tokens + tokens
            if now - measured > self.settings.measure_every and self.step < self.steps:
                measure(self.step)
                measured = perf_counter()
            if now - saved > self.settings.save_every:
                watch(self._told(*pending))  # a loss that is no number must not reach a checkpoint
                pending = None
                self._save()
                saved = perf_counter()
            pause = self.settings.pause_after
            if pause is not None and now - started > 60 * pause and self.step < self.steps:
                self._save()
                return False
        if pending is not None:
            watch(self._told(*pending))
        measure(self.step)  # the last look is at what will ship
        self._save()
        return True

    def _one(self, step: int, batch: Any) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]], int]:
        seed = hash((self.settings.seed, step)) % (1 << 62)
        shown = self.teacher.show(batch.ids, batch.answer, batch.live, self.taps, seed)
        kind = next(iter(shown.features.values())).dtype
        losses: dict[str, Tensor] = {}
        figures: dict[str, dict[str, Tensor]] = {}
        for name, active in self._at(step).items():
            for loss, more in active.step(shown, step, kind):
                losses[name] = losses.get(name, 0.0) + loss
                figures.setdefault(name, {}).update(more)
        return (
            losses,
            figures,
            sum(min(len(self.batches.dialogues[i].tokens), batch.ids.shape[1]) for i in batch.numbers),
        )

    def _told(
        self, report: Report, losses: dict[str, Tensor], figures: dict[str, dict[str, Tensor]], numbers: tuple[int, ...]
    ) -> Report:
        """The numbers of a step, read one step later so that the device need not wait."""
        plain = {name: float(x) for name, x in losses.items()}
        for name, value in plain.items():
            if not math.isfinite(value):
                shown = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
                raise TrainError(
                    f"{name}: the loss of step {report.step} is {value}; its batch holds dialogues {shown}\n"
                    "hint: the last checkpoint is from before it; look at these dialogues, or lower the rate"
                )
        told = {name: {k: float(v) for k, v in more.items()} for name, more in figures.items()}
        return Report(report.step, report.steps, report.tokens, plain, told, report.seconds)

    def _at(self, step: int) -> dict[str, _Active]:
        """Who learns at this step; a stage's optimisers begin with it."""
        for name, plan in self.plans.items():
            shares = sum(stage.share for stage in plan.learns)
            first = 0
            for i, stage in enumerate(plan.learns):
                passed = sum(s.share for s in plan.learns[: i + 1]) / shares
                last = self.steps if i + 1 == len(plan.learns) else round(self.steps * passed)
                if first <= step < last:
                    held = self._active.get(name)
                    if held is None or held.stage is not stage:
                        self._active[name] = _Active(name, stage, first, last)
                    break
                first = last
        return self._active

    def _fit(self) -> int:
        """Steps that fit into the minutes. The steps that were timed leave no trace."""
        minutes = self.settings.minutes
        if minutes is None:
            raise TrainError("neither steps nor minutes were given\nhint: --steps N or --minutes M")
        before = {name: t.detach().clone() for name, t in self._weights().items()}
        self.steps = WARM + TIMED
        started = perf_counter()
        for i in range(WARM + TIMED):
            if i == WARM:
                self._wait()
                started = perf_counter()
            self._one(i, self.batches.at(i * 7).to(self.teacher.device))
        self._wait()
        each = (perf_counter() - started) / TIMED
        with torch.no_grad():
            for name, t in self._weights().items():
                t.copy_(before[name])
        self._active = {}
        return max(1, int(60 * minutes / each))

    def _wait(self) -> None:
        if self.teacher.device.type == "cuda":
            torch.cuda.synchronize()

    def _weights(self) -> dict[str, Tensor]:
        return {
            f"{name}/{key}": t
            for name, plan in self.plans.items()
            if plan.net is not None
            for key, t in plan.net.state_dict().items()
        }

    def _save(self) -> None:
        tensors = {f"weights/{name}": t for name, t in self._weights().items()}
        for active in self._active.values():
            tensors |= active.tensors()
        note = {"step": self.step, "steps": self.steps, "tokens": self.tokens, "seed": self.settings.seed}
        checkpoint.write(self.settings.folder, tensors, {**note, "identity": self.identity})

    def _resume(self) -> None:
        found = checkpoint.read(self.settings.folder)
        if found is None:
            return
        tensors, note = found
        if note["identity"] != self.identity or note["seed"] != self.settings.seed:
            raise TrainError(
                f"{self.settings.folder} holds a run with other data, options or seed\n"
                "hint: another --out, or delete the folder"
            )
        if self.settings.steps not in (None, note["steps"]):
            raise TrainError(
                f"{self.settings.folder} holds a run of {note['steps']} steps, not {self.settings.steps}\n"
                "hint: leave out --steps to go on with it"
            )
        self.step, self.steps, self.tokens = note["step"], note["steps"], note["tokens"]
        with torch.no_grad():
            for name, t in self._weights().items():
                t.copy_(tensors[f"weights/{name}"])
        if self.step < self.steps:
            for active in self._at(self.step).values():
                active.restore(tensors)

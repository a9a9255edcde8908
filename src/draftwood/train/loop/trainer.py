"""The training loop: compute a batch's features, collect every learner's losses, step.

Several plans may share the loop, so that one target pass serves all of them. Batches, rates and noise are functions of the
step alone: a run that was killed and resumed ends with the same weights as an uninterrupted one.
"""

import hashlib
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from draftwood.core.train_plan import TrainPlan
from draftwood.errors import TrainError
from draftwood.train.loop import checkpoint
from draftwood.train.loop.batches import Batch, Batches
from draftwood.train.loop.stages import Active, stage_at
from draftwood.train.loop.step_time import TIMED, WARM, time_steps
from draftwood.train.loop.teacher import Teacher


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """`steps` None: as many as fit into `minutes`, chosen once and stored in the checkpoint."""

    folder: Path
    steps: int | None = None
    minutes: float | None = None
    seed: int = 0
    save_every: float = 120.0  # seconds
    measure_every: float = 180.0
    pause_after: float | None = None  # minutes after which the run saves and stops
    prompt_share: float = 0.0  # share of the prompt positions that are trained on


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of one step."""

    step: int
    steps: int
    tokens: int  # positions of the batch, without padding
    seen: int  # of all batches so far
    losses: Mapping[str, Any]  # numbers; tensors until they are read from the device
    figures: Mapping[str, Mapping[str, Any]]
    seconds: float  # of the whole run so far


class Trainer:
    """Trains plans, by name. `run` may be called again to resume."""

    def __init__(
        self,
        plans: Mapping[str, TrainPlan],
        teacher: Teacher,
        batches: Batches,
        settings: LoopSettings,
        identity: Mapping[str, str] | None = None,
    ) -> None:
        self.plans, self.teacher, self.batches, self.settings = dict(plans), teacher, batches, settings
        # Data and options: a checkpoint with other ones is refused.
        self.identity = {**(identity or {}), "seed": str(settings.seed)}
        self.step, self.steps = 0, settings.steps or 0
        self.tokens, self.seconds = 0, 0.0
        self._active: dict[str, Active] = {}
        # A step whose figures are still on the device, and its dialogues. It is read one step later, to avoid waiting.
        self._pending: tuple[Report, tuple[int, ...]] | None = None
        self._resumed, self._saved = False, -1  # _saved: step of the checkpoint
        needs = [stage.learner.needs for plan in plans.values() for stage in plan.learns]
        self.taps = frozenset(tap for need in needs for tap in need.taps)

    def run(
        self,
        on_step: Callable[[Report], None] = lambda report: None,
        measure: Callable[[int], None] = lambda step: None,
        until: threading.Event | None = None,
    ) -> bool:
        """True after the last step. False if it paused or `until` was set; the step in progress is finished and saved."""
        self.resume()
        if not self.steps and not self._choose_steps(until):
            return False
        started = saved = measured = perf_counter()
        before, pause = self.seconds, self.settings.pause_after
        while self.step < self.steps:
            batch = self.batches.at(self.step)
            losses, figures = self._train_step(self.step, batch)
            self._report(on_step)
            now = perf_counter()
            tokens = int(batch.live.sum())
            self.tokens, self.seconds = self.tokens + tokens, before + now - started
            report = Report(self.step, self.steps, tokens, self.tokens, losses, figures, self.seconds)
            self._pending = report, batch.numbers
            self.step += 1
            stop = (until is not None and until.is_set()) or (pause is not None and now - started > 60 * pause)
            if self.step == self.steps:
                break
            if stop or now - saved > self.settings.save_every:
                self._report(on_step)  # raises on a loss that is not finite, before it reaches the checkpoint
                self._save()
                saved = perf_counter()
            if stop:
                return False
            if now - measured > self.settings.measure_every:
                self._report(on_step)
                self._check_finite()
                measure(self.step)
                measured = perf_counter()
        if self._saved != self.step:  # nothing to save if a completed run was started again
            self._report(on_step)
            self._save()
        measure(self.step)
        return True

    def _train_step(self, step: int, batch: Batch) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        seed, share = noise_seed(self.settings.seed, step), self.settings.prompt_share
        shown = self.teacher.show(batch.ids, batch.answer, batch.live, self.taps, seed, share)
        kind = next(iter(shown.features.values())).dtype
        losses: dict[str, Tensor] = {}
        figures: dict[str, dict[str, Tensor]] = {}
        for name, active in self._at(step).items():
            for loss, more in active.step(shown, step, kind):
                losses[name] = losses.get(name, 0.0) + loss
                figures.setdefault(name, {}).update(more)
        return losses, figures

    def _report(self, on_step: Callable[[Report], None]) -> None:
        """Reads and reports the figures of the previous step. TrainError if a loss is not finite."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        report, numbers = pending
        plain = {name: float(x) for name, x in report.losses.items()}
        for name, value in plain.items():
            if not math.isfinite(value):
                shown = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
                raise TrainError(
                    f"{name}: the loss of step {report.step} is {value}; its batch holds dialogues {shown} (from 0, "
                    f"unreadable ones not counted)\nhint: {self._kept()}; inspect these dialogues, or lower the rate: "
                    "--option rate=... with another --out"
                )
        figures = {name: {k: float(v) for k, v in more.items()} for name, more in report.figures.items()}
        on_step(replace(report, losses=plain, figures=figures))

    def _kept(self) -> str:
        there = (self.settings.folder / checkpoint.FILE).exists()
        return "the last checkpoint is not affected" if there else "no checkpoint was written yet"

    def _at(self, step: int) -> dict[str, Active]:
        """The learners of this step. A new stage gets new optimisers."""
        for name, plan in self.plans.items():
            found = stage_at(plan, step, self.steps)
            held = self._active.get(name)
            if found is not None and (held is None or held.stage is not found[0]):
                self._active[name] = Active(name, *found)
        return self._active

    def _choose_steps(self, until: threading.Event | None) -> bool:
        """Chooses and saves the number of steps that fit into the minutes. Undoes the steps it timed."""
        minutes = self.settings.minutes
        if minutes is None:
            raise TrainError("neither steps nor minutes were given\nhint: --steps N or --minutes M")
        before = {name: t.detach().clone() for name, t in self._weights().items()}

        def step(i: int) -> None:
            self._train_step(i, self.batches.at(i * 7))
            if self.teacher.target.info.device.type == "cuda":
                torch.cuda.synchronize()

        self.steps = WARM + TIMED  # times every stage in proportion to its share
        found = time_steps(step, 60 * minutes, until)
        with torch.no_grad():
            for name, t in self._weights().items():
                t.copy_(before[name])
        self._active, self.steps = {}, 0
        if found is None:
            return False
        self.steps, self.seconds = found.steps(60 * minutes), found.spent
        self._save()
        return True

    def _weights(self) -> dict[str, Tensor]:
        nets = [(f"{name}/", plan.net) for name, plan in self.plans.items()]
        nets += [(f"{name}/beside/", plan.beside) for name, plan in self.plans.items()]
        return {at + key: t for at, net in nets if net is not None for key, t in net.state_dict().items()}

    def _save(self) -> None:
        tensors = {f"weights/{name}": t for name, t in self._weights().items()}
        for active in self._active.values():
            tensors |= active.tensors()
        self._check_finite(tensors)
        note = {"step": self.step, "steps": self.steps, "tokens": self.tokens, "seconds": self.seconds}
        checkpoint.write(self.settings.folder, tensors, {**note, "identity": self.identity})
        self._saved = self.step

    def _check_finite(self, tensors: Mapping[str, Tensor] | None = None) -> None:
        """TrainError if a weight is not finite: a gradient can overflow while its loss is finite."""
        bad = checkpoint.not_finite(self._weights() if tensors is None else tensors)
        if bad:
            raise TrainError(
                f"after step {self.step - 1} {bad[0]} holds NaN or infinite values\n"
                f"hint: {self._kept()}; lower the rate: --option rate=... with another --out"
            )

    def resume(self) -> int:
        """Loads the checkpoint, if there is one. Returns the number of steps done. TrainError if it is of another run."""
        found = None if self._resumed else checkpoint.read(self.settings.folder)
        self._resumed = True
        if found is None:
            return self.step
        tensors, note = found
        checkpoint.same_run(self.settings.folder, note, self.identity, self.settings.steps)
        self.step, self.steps, self.tokens = note["step"], note["steps"], note["tokens"]
        self._saved = self.step
        self.seconds = note["seconds"]
        checkpoint.load_weights(self.settings.folder, tensors, self._weights())
        if self.step < self.steps:
            for active in self._at(self.step).values():
                active.restore(tensors)
        return self.step


def noise_seed(seed: int, step: int) -> int:
    """The noise seed of a step, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{step}".encode(), digest_size=7).digest())

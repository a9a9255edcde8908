"""`draftwood train RECIPE`, for scripts: from a target's name and its data to what a recipe loads.

Several recipes may be trained at once: the target looks at every batch once and teaches all of them.

    out/RECIPE.safetensors     weights, where the recipe has some, with the record of how they came about
    out/counts-....npy         whatever a stage without a loop made
    out/log.jsonl              losses, looks through the engine
    out/checkpoint/            to go on after a kill
"""

import inspect
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from draftwood import recipes
from draftwood.core.train_plan import Build, Learn, Search, Stage, TrainPlan
from draftwood.drafters.frequent import count_written, coverage, most_frequent
from draftwood.drafters.nets.find import AUTO
from draftwood.errors import DraftwoodError, OptionError
from draftwood.models.loading.load import Loaded, load
from draftwood.train.data import datasets as material
from draftwood.train.loop import checkpoint, log
from draftwood.train.loop.batches import Batches
from draftwood.train.loop.capture import Teacher
from draftwood.train.loop.checkpoint import replace_file
from draftwood.train.loop.log import Log
from draftwood.train.loop.measure import Acceptance, head_file, measure, prompts_of
from draftwood.train.loop.record import head_bytes, identity
from draftwood.train.loop.start import Start, pour
from draftwood.train.loop.trainer import Report, Settings, Trainer

CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """What to train and for how long. Options of a recipe's `training` by recipe name."""

    recipes: tuple[str, ...]
    data: tuple[Path, ...]  # folders of `train data`, or files
    out: Path
    steps: int | None = None
    minutes: float | None = None
    pause_after: float | None = None
    rows: int = 8192
    batch_tokens: int | None = None  # positions of a batch; None: by the device
    longest: int = 1536  # tokens of a dialogue, as long as `train data` makes them
    join: bool = False  # rows of a batch hold several dialogues, so that far positions are learned too
    prompt_share: float = 0.0  # of the positions outside answers that teach too
    seed: int = 0
    start: str | None = None  # first weights: "auto", a head file, or a folder of them; None: fresh ones
    save_every: float = 120.0  # seconds
    measure_every: float = 180.0
    prompts: int = 8  # held-out ones that acceptance is measured on
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])

    def __post_init__(self) -> None:
        if not self.recipes:
            raise OptionError(f"no recipe to train\nhint: {', '.join(trainable())}")
        if not self.data:
            raise OptionError("no data to train on\nhint: `draftwood train data` makes a folder of it")
        for name in self.recipes:
            training_of(name)
            if ":" in name:
                raise OptionError(f"{name}: a recipe is trained without its options\nhint: --option KEY=VALUE")
        if not 0 <= self.seed < 2**63:
            raise OptionError(f"seed cannot be {self.seed}\nhint: a whole number from 0 on")
        if self.steps is not None and self.minutes is not None:
            raise OptionError(f"--steps {self.steps} and --minutes {self.minutes} were both given\nhint: one of them")
        for name in ("steps", "minutes", "pause_after", "save_every", "measure_every"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise OptionError(f"{name} cannot be {value}\nhint: more than 0")
        if not 0 <= self.prompt_share <= 1:
            raise OptionError(f"prompt_share cannot be {self.prompt_share}\nhint: 0 for answers alone, at most 1")
        if self.start not in (None, AUTO) and not Path(str(self.start)).exists():
            raise OptionError(
                f"--from {self.start}: there is no such file\nhint: a head file, a folder of them, or auto"
            )
        for path in (self.out, *self.out.parents):
            if path.exists() and not path.is_dir():
                raise OptionError(f"--out {self.out}: {path} is a file\nhint: name a folder, it may be a new one")


def trainable() -> list[str]:
    return [name for name in recipes.names() if hasattr(recipes.load(name), "training")]


def training_of(name: str) -> Callable[..., TrainPlan]:
    """A recipe's training. OptionError if it has none."""
    found = getattr(recipes.load(name), "training", None)
    if found is None:
        raise OptionError(f"{name} has nothing to train\nhint: {', '.join(trainable())}")
    return found


class Session:
    """Everything a run holds: the target, the data, the plans."""

    def __init__(self, target: str | Loaded, learning: Learning, *, device: str = "cpu", dtype: str = "auto") -> None:
        self.learning, self.device = learning, device
        self.loaded = load(target, dtype=dtype, device=device) if isinstance(target, str) else target
        model = self.loaded.model
        self.train, self.held, self.complaints = material.read(learning.data, self.loaded)
        self.record = material.summed(learning.data)  # of the data
        counts = torch.from_numpy(count_written(self.train, model.vocab_size))
        self.keep = most_frequent(counts, learning.rows, model)
        self.coverage = coverage(counts, self.keep)
        self.plans = {name: self._plan(name) for name in learning.recipes}
        self.nets = {name: plan for name, plan in self.plans.items() if plan.net is not None}
        self.starts: dict[str, Start] = {}  # by recipe
        if learning.start is not None:
            self.starts = pour(learning.start, self.nets, self.keep, self.loaded, learning.out)
        self.made: dict[str, dict[str, str]] = {}  # options that take what was made, by recipe
        self.log = Log(learning.out)
        self.step = 0

    def _plan(self, name: str) -> TrainPlan:
        training = training_of(name)
        seed = {"seed": self.learning.seed} if "seed" in inspect.signature(training).parameters else {}
        return training(self.loaded.model, self.keep, **{**seed, **self.learning.options.get(name, {})})

    def run(
        self,
        watch: Callable[[Report], None] = lambda report: None,
        told: Callable[[str, Acceptance, int], None] = lambda name, found, step: None,
        *,
        until: threading.Event | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> bool:
        """True when all is done; False when it paused or was interrupted, with everything saved."""
        with self._alone():
            trainer = self._trainer()
            self.step = trainer.resume() if trainer is not None else 0
            self.log.reopen(self.step)
            prompts = prompts_of(
                self.held.items, self.learning.prompts, min(1024, self.loaded.model.max_positions // 2)
            )
            if not prompts:
                say("no prompt is short enough to measure acceptance on")

            def look(step: int) -> None:
                self.step = step
                for name in self.nets:
                    self.save(name, trainer)
                for name in self.plans if prompts else ():
                    self._look(name, step, prompts, told, say)

            self._stages(late=False, say=say)
            if trainer is not None:
                if trainer.step == 0:
                    look(0)  # what the training starts from
                done = trainer.run(lambda report: self._each(report, watch), look, until)
                self.step = trainer.step
                for name in self.nets:
                    self.save(name, trainer)
                if not done:
                    return False
            late = self._stages(late=True, say=say)
            if trainer is None or late:
                look(self.step)
            return True

    def _trainer(self) -> Trainer | None:
        """None where nothing is learned by gradients."""
        own, model = self.learning, self.loaded.model
        plans = {name: plan for name, plan in self.plans.items() if plan.learns}
        if not plans:
            return None
        tokens = own.batch_tokens or (32768 if self.device.startswith("cuda") else 2048)
        longest = min(own.longest, model.max_positions)
        batches = Batches(self.train.items, tokens=tokens, longest=longest, seed=own.seed, join=own.join)
        settings = Settings(
            own.out / CHECKPOINT,
            steps=own.steps,
            minutes=own.minutes,
            seed=own.seed,
            save_every=own.save_every,
            measure_every=own.measure_every,
            pause_after=own.pause_after,
            prompt_share=own.prompt_share,
        )
        named = identity(self, batch_tokens=tokens, longest=longest)
        return Trainer(plans, Teacher(model), batches, settings, named)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Alone in the folder, without what killed runs left behind."""
        out = self.learning.out
        try:
            out.mkdir(parents=True, exist_ok=True)
            lock = FileLock(out / ".lock").acquire(blocking=False)
        except Timeout:
            raise OptionError(f"another run is writing {out}\nhint: wait for it, or use another --out") from None
        except OSError as error:
            raise OptionError(f"--out {out} cannot be used: {error.strerror or error}") from None
        with lock:
            for folder in (out, out / CHECKPOINT):
                checkpoint.sweep(folder)
            self._spare(out)
            yield

    def _spare(self, out: Path) -> None:
        """OptionError before a head is replaced that no run here wrote."""
        if (out / CHECKPOINT / checkpoint.FILE).is_file() or (out / log.FILE).is_file():
            return
        for path in (head_file(out, name) for name in self.nets):
            if path.exists():
                raise OptionError(
                    f"{path} is there, and nothing says that a run in this folder wrote it\nhint: another --out, or move it"
                )
        (out / log.FILE).touch()  # from here on the folder is this run's

    def _each(self, report: Report, watch: Callable[[Report], None]) -> None:
        if report.step % 10 == 0 or report.step + 1 == report.steps:
            figures = {f"{n}/{k}": v for n, more in report.figures.items() for k, v in more.items()}
            self.log.add({"step": report.step, "tokens": report.seen, "seconds": report.seconds,
                          "losses": report.losses, "figures": figures})  # fmt: skip
        watch(report)

    def _stages(self, *, late: bool, say: Callable[[str], None]) -> bool:
        """Stages without a loop: those before the first Learn, or (late) those after it. Whether there were any."""
        found = [(name, stage) for name, plan in self.plans.items() for stage in _apart(plan, late)]
        for name, stage in found:
            record = self._build(name, stage) if isinstance(stage, Build) else stage.run()
            self.log.add({"recipe": name, "stage": stage.name, "made": record})
            say(f"{name}: {stage.name}: " + ", ".join(f"{key} {value}" for key, value in record.items()))
        return bool(found)

    def _build(self, name: str, stage: Build) -> dict[str, Any]:
        made, out = stage.run(self.train), self.learning.out
        for file, content in made.files.items():
            replace_file(out / file, content)
        self.made[name] = {option: str(out / file) for option, file in made.options.items()}
        return {**made.record, **self.made[name]}

    def _look(self, name: str, step: int, prompts: list[list[int]], told: Any, say: Any) -> None:
        """Once for every recipe and step: a run that had ended before says nothing twice."""
        if any(e["step"] == step for e in self.log.looks(name)):
            return
        options: dict[str, Any] = {**self.plans[name].notes.get("options", {}), **self.made.get(name, {})}
        if name in self.nets:
            options["weights"] = str(head_file(self.learning.out, name))
        try:
            found = measure(self.loaded, name, prompts, device=self.device, **options)
        except DraftwoodError as error:
            if name in self.nets:
                raise
            say(f"{name} is not measured: {str(error).partition(chr(10))[0]}")  # it may need a drafter besides
            return
        self.log.add({"step": step, "recipe": name, "tokens_per_pass": found.tokens_per_pass,
                      "by_position": found.by_position, "rounds": found.rounds})  # fmt: skip
        told(name, found, step)

    def save(self, name: str, trainer: Trainer | None) -> Path:
        """The weights as a recipe loads them, with the record of how they came about."""
        path = head_file(self.learning.out, name)
        replace_file(path, head_bytes(self, name, trainer))
        return path


def _apart(plan: TrainPlan, late: bool) -> list[Build | Search]:
    learns = [i for i, stage in enumerate(plan.stages) if isinstance(stage, Learn)]
    first = learns[0] if learns else len(plan.stages)
    part: tuple[Stage, ...] = plan.stages[first:] if late else plan.stages[:first]
    return [stage for stage in part if not isinstance(stage, Learn)]

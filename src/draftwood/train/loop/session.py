"""`draftwood train RECIPE` as a Python API: trains drafters for a target and writes the files that recipes load.

Several recipes can be trained at once. Each batch then takes one target pass, whose features serve all of them.

    out/RECIPE.safetensors     weights, with a record of how they were trained
    out/counts-....npy         output of a stage without gradient steps
    out/log.jsonl              losses and measured acceptance
    out/checkpoint/            state from which an interrupted run resumes
"""

import inspect
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from draftwood import recipes
from draftwood.core.host import on_host
from draftwood.core.train_plan import Build, Learn, Search, Stage, TrainPlan
from draftwood.drafters.frequent import count_written, coverage, most_frequent
from draftwood.drafters.nets.files.find import AUTO
from draftwood.errors import DraftwoodError, OptionError
from draftwood.models.loading.load import Loaded, loaded_on
from draftwood.runners.open import runner_of
from draftwood.train.data import datasets
from draftwood.train.loop import checkpoint, train_log
from draftwood.train.loop.batches import Batches
from draftwood.train.loop.checkpoint import replace_file
from draftwood.train.loop.head_record import head_bytes, identity
from draftwood.train.loop.initial_weights import Start, load_initial
from draftwood.train.loop.measure import Acceptance, head_file, measure, prompts_of
from draftwood.train.loop.teacher import Teacher, reading_seconds
from draftwood.train.loop.train_log import Log
from draftwood.train.loop.trainer import LoopSettings, Report, Trainer

CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """What to train and for how long. `options` are those of a recipe's `training`, by recipe name."""

    recipes: tuple[str, ...]
    data: tuple[Path, ...]  # folders of `train data`, or files
    out: Path
    steps: int | None = None
    minutes: float | None = None
    pause_after: float | None = None
    draft_vocab_size: int = 8192  # most frequent tokens; control tokens are added
    batch_tokens: int | None = None  # positions of a batch; None depends on the device
    longest: int = 1536  # tokens of a dialogue, the maximum of `train data`
    join: bool = False  # sequences of several dialogues, to train on high positions
    prompt_share: float = 0.0  # share of the prompt positions that are trained on
    seed: int = 0
    start: str | None = None  # initial weights: "auto", a head file, or a folder of them; None draws them
    save_every: float = 120.0  # seconds
    measure_every: float = 180.0
    prompts: int = 8  # held-out prompts that acceptance is measured on
    bits: int = 8  # of a matrix's number in the files; 4 for smaller ones
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
            raise OptionError(f"seed cannot be {self.seed}\nhint: an integer of at least 0")
        if self.steps is not None and self.minutes is not None:
            raise OptionError(f"--steps {self.steps} and --minutes {self.minutes} were both given\nhint: one of them")
        for name in ("steps", "minutes", "pause_after", "save_every", "measure_every"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise OptionError(f"{name} cannot be {value}\nhint: more than 0")
        if self.bits not in (4, 8):
            raise OptionError(f"bits cannot be {self.bits}\nhint: 8, or 4 for files of about 0.6 times the size")
        if not 0 <= self.prompt_share <= 1:
            raise OptionError(f"prompt_share cannot be {self.prompt_share}\nhint: 0 for answers only, at most 1")
        if self.start not in (None, AUTO) and not Path(str(self.start)).exists():
            raise OptionError(
                f"--from {self.start}: there is no such file\nhint: a head file, a folder of them, or auto"
            )
        for path in (self.out, *self.out.parents):
            if path.exists() and not path.is_dir():
                raise OptionError(f"--out {self.out}: {path} is a file\nhint: name a folder, it may be a new one")

    def batch_positions(self, device: torch.device) -> int:
        """Positions of one batch on this device."""
        return self.batch_tokens or (2048 if on_host(device) else 32768)

    def answer_tokens(self, device: torch.device) -> int | None:
        """Answer tokens that the steps can use once: about half of a dialogue's tokens are its prompt. None by minutes."""
        return None if self.steps is None else max(1, self.steps * self.batch_positions(device) // 2)


def trainable() -> list[str]:
    return [name for name in recipes.names() if hasattr(recipes.load(name), "training")]


def training_of(name: str) -> Callable[..., TrainPlan]:
    """A recipe's training. OptionError if it has none."""
    found = getattr(recipes.load(name), "training", None)
    if found is None:
        raise OptionError(f"{name} has nothing to train\nhint: {', '.join(trainable())}")
    return found


class Session:
    """One training run: the target, the data and the recipes' plans."""

    def __init__(
        self, target: str | Loaded, settings: TrainSettings, *, device: str | torch.device = "auto", dtype: str = "auto"
    ) -> None:
        self.settings = settings
        self.loaded = loaded_on(target, dtype=dtype, device=device)
        self.target = runner_of(self.loaded)
        self.train, self.held, self.complaints = datasets.read(settings.data, self.loaded)
        self.data_record = datasets.summed(settings.data)
        counts = torch.from_numpy(count_written(self.train, self.loaded.info.vocab_size))
        self.keep = most_frequent(counts, settings.draft_vocab_size, self.target)
        self.coverage = coverage(counts, self.keep)
        self.plans = {name: self._plan(name) for name in settings.recipes}
        self.nets = {name: plan for name, plan in self.plans.items() if plan.net is not None}
        self.starts: dict[str, Start] = {}  # by recipe
        if settings.start is not None:
            self.starts = load_initial(settings.start, self.nets, self.keep, self.loaded, settings.out)
        self.made: dict[str, dict[str, str]] = {}  # recipe -> option -> file that a stage made
        self.log = Log(settings.out)
        self.step = 0

    def _plan(self, name: str) -> TrainPlan:
        training = training_of(name)
        seed = {"seed": self.settings.seed} if "seed" in inspect.signature(training).parameters else {}
        return training(self.target, self.keep, **{**seed, **self.settings.options.get(name, {})})

    def run(
        self,
        on_step: Callable[[Report], None] = lambda report: None,
        on_measured: Callable[[str, Acceptance, int], None] = lambda name, found, step: None,
        *,
        until: threading.Event | None = None,
        on_message: Callable[[str], None] = lambda text: None,
    ) -> bool:
        """True when the run is complete; False when it paused or was interrupted, with its state saved."""
        with self._alone():
            trainer = self._trainer()
            self.step = trainer.resume() if trainer is not None else 0
            self.log.reopen(self.step)
            prompts = prompts_of(self.held.items, self.settings.prompts, min(1024, self.loaded.info.max_positions // 2))
            if not prompts:
                on_message("no prompt is short enough to measure acceptance on")

            def measure_all(step: int) -> None:
                self.step = step
                for name in self.nets:
                    self.save(name, trainer)
                for name in self.plans if prompts else ():
                    self._measure(name, step, prompts, on_measured, on_message)
                for name in self.nets if prompts else ():
                    self.save(name, trainer)  # with the figure in its record

            self._stages(late=False, on_message=on_message)
            if trainer is not None:
                if trainer.step == 0:
                    measure_all(0)
                done = trainer.run(lambda report: self._each(report, on_step), measure_all, until)
                self.step = trainer.step
                for name in self.nets:
                    self.save(name, trainer)
                if not done:
                    return False
            late = self._stages(late=True, on_message=on_message)
            if trainer is None or late:
                measure_all(self.step)
            return True

    def tokens_per_pass(self, name: str) -> float | None:
        """As measured on held-out prompts with the current weights; None if they were not measured."""
        found = self._measurements(name, self.step)
        return found[-1]["tokens_per_pass"] if found else None

    def _measurements(self, name: str, step: int) -> list[dict[str, Any]]:
        """Of this step, with weights in as many bits as they are stored in now."""
        own = self.settings.bits
        return [e for e in self.log.measurements(name) if e["step"] == step and e.get("bits", 8) == own]

    def least_seconds(self) -> float | None:
        """Seconds that the target alone takes to read the batches of all steps; None where no steps are fixed."""
        steps, tokens = self.settings.steps, self.settings.batch_positions(self.loaded.info.device)
        if steps is None or not any(plan.learns for plan in self.plans.values()):
            return None
        return reading_seconds(self.target, tokens) * steps

    def _trainer(self) -> Trainer | None:
        """None if no recipe has a stage with gradient steps."""
        own = self.settings
        plans = {name: plan for name, plan in self.plans.items() if plan.learns}
        if not plans:
            return None
        tokens = own.batch_positions(self.loaded.info.device)
        longest = min(own.longest, self.loaded.info.max_positions)
        batches = Batches(self.train.items, tokens=tokens, longest=longest, seed=own.seed, join=own.join)
        shared = {each.name: getattr(own, each.name) for each in fields(LoopSettings) if each.name != "folder"}
        settings = LoopSettings(own.out / CHECKPOINT, **shared)
        named = identity(self, batch_tokens=tokens, longest=longest)
        return Trainer(plans, Teacher(self.target), batches, settings, named)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Locks the folder and removes temporary files of killed runs."""
        out = self.settings.out
        try:
            out.mkdir(parents=True, exist_ok=True)
            lock = FileLock(out / ".lock").acquire(blocking=False)
        except Timeout:
            raise OptionError(f"another run is writing {out}\nhint: wait for it, or use another --out") from None
        except OSError as error:
            raise OptionError(f"--out {out} cannot be used: {error.strerror or error}") from None
        with lock:
            for folder in (out, out / CHECKPOINT):
                checkpoint.remove_temporary(folder)
            self._spare(out)
            yield

    def _spare(self, out: Path) -> None:
        """OptionError if a head file in the folder was not written by a run there."""
        if (out / CHECKPOINT / checkpoint.FILE).is_file() or (out / train_log.FILE).is_file():
            return
        for path in (head_file(out, name) for name in self.nets):
            if path.exists():
                raise OptionError(
                    f"{path} exists and was not written by a run in this folder\nhint: another --out, or move the file"
                )
        (out / train_log.FILE).touch()  # marks the folder as this run's

    def _each(self, report: Report, on_step: Callable[[Report], None]) -> None:
        if report.step % 10 == 0 or report.step + 1 == report.steps:
            figures = {f"{n}/{k}": v for n, more in report.figures.items() for k, v in more.items()}
            self.log.add({"step": report.step, "tokens": report.seen, "seconds": report.seconds,
                          "losses": report.losses, "figures": figures})  # fmt: skip
        on_step(report)

    def _stages(self, *, late: bool, on_message: Callable[[str], None]) -> bool:
        """Runs the stages without gradient steps before the first Learn, or (late) after it. False if there are none."""
        found = [(name, stage) for name, plan in self.plans.items() for stage in _without_gradients(plan, late)]
        for name, stage in found:
            record = self._build(name, stage) if isinstance(stage, Build) else stage.run()
            self.log.add({"recipe": name, "stage": stage.name, "made": record})
            on_message(f"{name}: {stage.name}: " + ", ".join(f"{key} {value}" for key, value in record.items()))
        return bool(found)

    def _build(self, name: str, stage: Build) -> dict[str, Any]:
        made, out = stage.run(self.train), self.settings.out
        for file, content in made.files.items():
            replace_file(out / file, content)
        self.made[name] = {option: str(out / file) for option, file in made.options.items()}
        return {**made.record, **self.made[name]}

    def _measure(self, name: str, step: int, prompts: list[list[int]], on_measured: Any, on_message: Any) -> None:
        """Once for each recipe and step, also when a completed run is started again."""
        if self._measurements(name, step):
            return
        options: dict[str, Any] = {**self.plans[name].notes.get("options", {}), **self.made.get(name, {})}
        if name in self.nets:
            options["weights"] = str(head_file(self.settings.out, name))
        try:
            found = measure(self.loaded, name, prompts, **options)
        except DraftwoodError as error:
            if name in self.nets:
                raise
            on_message(f"{name} is not measured: {str(error).partition(chr(10))[0]}")  # it may need another drafter
            return
        stored = {} if self.settings.bits == 8 else {"bits": self.settings.bits}
        self.log.add({"step": step, "recipe": name, "tokens_per_pass": found.tokens_per_pass,
                      "by_position": found.by_position, "rounds": found.rounds, **stored})  # fmt: skip
        on_measured(name, found, step)

    def save(self, name: str, trainer: Trainer | None) -> None:
        """Writes the weights as the recipe loads them, with the record of their training."""
        replace_file(head_file(self.settings.out, name), head_bytes(self, name, trainer))


def _without_gradients(plan: TrainPlan, late: bool) -> list[Build | Search]:
    learns = [i for i, stage in enumerate(plan.stages) if isinstance(stage, Learn)]
    first = learns[0] if learns else len(plan.stages)
    part: tuple[Stage, ...] = plan.stages[first:] if late else plan.stages[:first]
    return [stage for stage in part if not isinstance(stage, Learn)]

"""`draftwood train RECIPE`, for scripts: from a target's name and its data to weights that a recipe loads.

Several recipes may be trained at once: the target looks at every batch once and teaches all of them.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftwood import recipes
from draftwood._version import __version__
from draftwood.core.plan import TrainPlan
from draftwood.drafters.nets.store import Head, to_bytes
from draftwood.errors import OptionError
from draftwood.models.load import Loaded, load
from draftwood.train import dialogues as data
from draftwood.train.batches import Batches
from draftwood.train.capture import Teacher
from draftwood.train.checkpoint import replace_file
from draftwood.train.measure import Acceptance, head_file, measure, prompts_of
from draftwood.train.trainer import Report, Settings, Trainer
from draftwood.train.vocabulary import counts, coverage, most_frequent


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """What to train and for how long. Options of a recipe's `training` by recipe name."""

    recipes: tuple[str, ...]
    data: Path
    out: Path
    steps: int | None = None
    minutes: float | None = None
    pause_after: float | None = None
    rows: int = 8192
    batch_tokens: int | None = None  # positions of a batch; None: by the device
    longest: int = 1024
    seed: int = 0
    measure_every: float = 180.0
    prompts: int = 8  # held-out ones that acceptance is measured on
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])


class Session:
    """Everything a run holds: the target, the data, the plans."""

    def __init__(self, target: str | Loaded, learning: Learning, *, device: str = "cpu", dtype: str = "auto") -> None:
        self.learning, self.device = learning, device
        self.loaded = load(target, dtype=dtype, device=device) if isinstance(target, str) else target
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        self.train = data.read(learning.data, tokenizer, model.vocab)
        held = learning.data / data.HELDOUT if learning.data.is_dir() else learning.data
        self.held = data.read(held, tokenizer, model.vocab) if held.is_file() and held.stat().st_size else self.train
        self.counts = counts(self.train, model.vocab)
        keep = most_frequent(self.counts, learning.rows, self.loaded.config.eos_tokens)
        self.keep = keep.to(device)
        self.coverage = coverage(self.counts, keep)
        self.plans = {name: self._plan(name) for name in learning.recipes}
        self.log: list[dict[str, Any]] = []
        self.spent = 0.0

    def _plan(self, name: str) -> TrainPlan:
        module = recipes.load(name)
        if not hasattr(module, "training"):
            trained = [n for n in recipes.names() if hasattr(recipes.load(n), "training")]
            raise OptionError(f"{name} has nothing to train\nhint: {', '.join(trained)}")
        options = {"seed": self.learning.seed, **self.learning.options.get(name, {})}
        return module.training(self.loaded.model, self.keep, **options)

    def run(self, watch: Callable[[Report], None], told: Callable[[str, Acceptance, int], None]) -> bool:
        """True when all steps are done; False when it paused."""
        learning = self.learning
        tokens = learning.batch_tokens or (32768 if self.device.startswith("cuda") else 2048)
        batches = Batches(self.train.items, tokens=tokens, longest=learning.longest, seed=learning.seed)
        settings = Settings(
            learning.out / "checkpoint",
            steps=learning.steps,
            minutes=learning.minutes,
            seed=learning.seed,
            pause_after=learning.pause_after,
            measure_every=learning.measure_every,
        )
        trainer = Trainer(self.plans, Teacher(self.loaded.model), batches, settings, self._identity(tokens))
        prompts = prompts_of(self.held.items, learning.prompts)

        def look(step: int) -> None:
            for name in self.plans:
                self.save(name, trainer)
                path = str(head_file(learning.out, name))
                found = measure(self.loaded, name, prompts, device=self.device, weights=path)
                self._note({"step": step, "recipe": name, "tokens_per_pass": found.tokens_per_pass,
                            "by_position": found.by_position, "rounds": found.rounds})  # fmt: skip
                told(name, found, step)

        def each(report: Report) -> None:
            self.spent = report.seconds
            if report.step % 10 == 0 or report.step + 1 == report.steps:
                figures = {f"{n}/{k}": v for n, more in report.figures.items() for k, v in more.items()}
                self._note({"step": report.step, "tokens": trainer.tokens, "seconds": report.seconds,
                            "losses": report.losses, "figures": figures})  # fmt: skip
            watch(report)

        learning.out.mkdir(parents=True, exist_ok=True)
        done = trainer.run(each, look)
        for name in self.plans:
            self.save(name, trainer)
        return done

    def _note(self, entry: dict[str, Any]) -> None:
        self.log.append(entry)
        with (self.learning.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _identity(self, batch_tokens: int) -> str:
        own = self.learning
        options = {name: dict(chosen) for name, chosen in own.options.items()}
        items = [
            self.loaded.fingerprint,
            len(self.train),
            sorted(own.recipes),
            own.rows,
            own.longest,
            own.seed,
            options,
        ]
        items.append(batch_tokens)
        digest = hashlib.sha256(json.dumps(items, sort_keys=True, default=str).encode())
        digest.update(self.counts.tobytes())
        return digest.hexdigest()[:16]

    def save(self, name: str, trainer: Trainer) -> Path:
        """The weights as a recipe loads them, with the record of how they came about."""
        plan = self.plans[name]
        assert plan.net is not None
        record = {
            "recipe": name,
            "version": __version__,
            "step": trainer.step,
            "steps": trainer.steps,
            "tokens_seen": trainer.tokens,
            "coverage": round(self.coverage, 4),
            "data": self._data_record(),
            "trained": sorted(self.plans),
            "options": {k: v for k, v in self.learning.options.get(name, {}).items()},
        }
        tensors = {key: t.detach().float().cpu() for key, t in plan.net.state_dict().items()}
        head = Head(plan.config, tensors, self.keep.cpu(), self.loaded.fingerprint, record)
        path = head_file(self.learning.out, name)
        replace_file(path, to_bytes(head, bits=plan.notes.get("bits")))
        return path

    def _data_record(self) -> dict[str, Any]:
        path = self.learning.data / data.RECORD
        try:
            raw = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            raw = {}
        return {"dialogues": len(self.train), "answer_tokens": self.train.num_answer_tokens, "record": raw}

"""bench spec: the speed of recipes, plain decoding and other engines on real questions.

Every method answers a question before the next one is asked, in an order that changes, so that a change of the machine
affects all methods. One process works at a time. The results log, written after each question, is the run's whole state.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from draftwood.bench.spec.answer import REFERENCE
from draftwood.bench.spec.peers import OURS, Settings
from draftwood.bench.spec.questions import Item, order
from draftwood.bench.spec.results_log import ResultsLog
from draftwood.bench.spec.summary import ALL, best, figures, prompt_speed, ratio
from draftwood.bench.spec.text_equality import few_enough, tokens_per_tie
from draftwood.bench.spec.worker_pool import WorkerPool
from draftwood.errors import OptionError
from draftwood.kernels.cpu.levels import SWITCH, chosen

PLAIN = "autoregressive"
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """Questions, methods and settings of a run."""

    items: tuple[Item, ...]
    settings: Settings
    peers: tuple[str, ...] = ()
    warmup: int = 3

    @property
    def methods(self) -> tuple[str, ...]:
        return (*self.settings.methods, *self.peers)

    @classmethod
    def of_log(cls, log: ResultsLog) -> "Plan":
        """The plan of a results log. It holds no texts of questions, so nothing more can be asked."""
        try:
            known = {
                key: log.settings[key] for key in ("model", "threads", "max_tokens", "temperature", "seed", "dtype")
            }
            settings = Settings(**known, methods=tuple(log.settings["recipes"]))
            return cls((), settings, tuple(log.settings["peers"]), log.settings["warmup"])
        except KeyError as error:
            raise OptionError(f"the settings of this results log lack {error}: it is not one of bench spec") from None

    def identity(self, source: dict[str, Any]) -> dict[str, Any]:
        """What two answers must have in common to stand in one table. `source`: see provenance."""
        s = self.settings
        asked = json.dumps([[i.id, i.category, i.text] for i in self.items]).encode()
        return {
            **{key: getattr(s, key) for key in ("model", "dtype", "max_tokens", "temperature", "seed", "threads")},
            **({"draft": s.draft} if s.draft else {}),
            "recipes": s.methods,
            "peers": self.peers,
            "questions": len(self.items),
            "questions_hash": hashlib.sha256(asked).hexdigest()[:16],
            SWITCH: chosen(),
            "warmup": self.warmup,
            **{key: source.get(key) for key in ("draftwood", "commit", "torch", "cpu", "device")},
        }


def recipes_with_plain(names: Sequence[str]) -> tuple[str, ...]:
    """The recipes once each, plain decoding first."""
    return tuple(dict.fromkeys((PLAIN, *names)))


def measure(
    plan: Plan, results_log: ResultsLog, *, say: Progress = lambda done, total: None, pool: WorkerPool | None = None
) -> None:
    """Ask the questions that the results log does not hold yet."""
    total = len(plan.items)
    if len(results_log.done) >= total:
        return
    pool = pool or WorkerPool(plan.settings, plan.peers)
    try:
        pool.open(plan.items, plan.warmup)
        results_log.note(pool.facts)
        say(len(results_log.done), total)
        for index, item in enumerate(plan.items):
            if item.id not in results_log.done:
                _question(plan, pool, results_log, item, index)
                say(len(results_log.done), total)
    finally:
        pool.close()


def _question(plan: Plan, pool: WorkerPool, results_log: ResultsLog, item: Item, index: int) -> None:
    meter = pool.meter()
    turns = order(plan.methods, index, plan.settings.seed)
    answers = {method: pool.ask(method, item, index) for method in turns}
    machine = {**meter.read(), "order": turns}
    plain = answers[PLAIN]
    for method, answer in answers.items():
        if method != PLAIN:
            pool.judge(answer, plain, index)
        elif plain.good:
            plain.status = REFERENCE
    results_log.add(item.id, list(answers.values()), machine)


def results(plan: Plan, results_log: ResultsLog) -> dict[str, Any]:
    """All figures of the answers."""
    answers, seed = results_log.answers(), plan.settings.seed
    facts: dict[str, Any] = results_log.facts.get(OURS, {})
    found = figures(answers, plan.methods, PLAIN, seed=seed)
    ratios = {
        ours: {other: ratio(answers, ours, other, seed=seed) for other in plan.peers} for ours in plan.settings.methods
    }
    foreign = [m["foreign_cores"] for m in results_log.machine.values() if "foreign_cores" in m]
    return {
        "figures": found,
        "against_peers": ratios,
        "prompts_against_peers": {
            other: ratio(answers, PLAIN, other, seed=seed, speed=prompt_speed) for other in plan.peers
        },
        "rivals": rivals(found, plan.peers),
        "precision": _facts(plan, results_log, "precision"),
        "device": _facts(plan, results_log, "device"),
        "not_compared": facts.get("not_compared", {}),  # why a recipe's texts need not be plain decoding's
        "lossy": [name for name, lossless in facts.get("lossless", {}).items() if not lossless],
        "failures": [
            {"method": a.method, "question": a.question, "error": a.error} for a in answers if a.error is not None
        ],
        "foreign_cores": {"mean": sum(foreign) / len(foreign), "most": max(foreign)} if foreign else None,
    }


def _facts(plan: Plan, results_log: ResultsLog, key: str) -> dict[str, str]:
    """By method: the number format it computes in, or its device, as its process reported it."""
    by = {**dict.fromkeys(plan.settings.methods, OURS), **{name: name for name in plan.peers}}
    return {method: results_log.facts.get(process, {}).get(key) or "unknown" for method, process in by.items()}


def rivals(found: dict[str, Any], peers: Sequence[str]) -> list[str]:
    """The fastest method of each engine; llama.cpp's plain decoding and its n-gram modes count as two engines."""
    plain = [p for p in peers if p == "llamacpp"]
    kinds = (plain, [p for p in peers if p.startswith("llamacpp-")], [p for p in peers if p.startswith("transformers")])
    return [name for kind in kinds if (name := best(found, kind)) is not None]


def broken(found: dict[str, Any], ours: Sequence[str]) -> list[str]:
    """Our methods that failed or whose texts differ although they must not, each with the reason."""
    said: list[str] = []
    for name in ours:
        f = found["figures"][ALL][name]
        if f["failures"]:
            said.append(f"{name}: {f['failures']} of {f['questions']} answers failed")
        if f["different"]:
            said.append(f"{name}: {f['different']} answers differ from plain decoding's")
        every = tokens_per_tie(found["precision"][name])
        if not few_enough(f["near_ties"], f["compared"], every):
            said.append(f"{name}: {f['near_ties']} near ties in {f['compared']} tokens, more than 1 in {every}")
    return said

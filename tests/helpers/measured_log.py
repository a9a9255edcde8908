"""A results log as `bench spec` writes it, with made-up times and hostile text, for the pages made from logs."""

from collections.abc import Sequence
from pathlib import Path

from draftwood.bench.spec.answer import IDENTICAL, REFERENCE, Answer
from draftwood.bench.spec.peers import OURS, Settings
from draftwood.bench.spec.questions import Item
from draftwood.bench.spec.results_log import ResultsLog
from draftwood.bench.spec.run import PLAIN, Plan
from draftwood.core.verdict import PARTS

HOSTILE = (
    "<img src=x onerror=\"document.title='taken over'\"></td><script>document.title='taken over'</script>\x1b[31m\u202e"
)
FAST, MIXED = "prompt_lookup", "eagle2"
SPEEDS = {PLAIN: (1.0, 1.0, 1.0), FAST: (0.5, 0.6, 0.5), MIXED: (0.9, 1.5, 1.1)}  # seconds of 10 tokens, by question


def made_answer(method: str, question: int, text: str, seconds: float) -> Answer:
    """Ten tokens; a fifth of the time before the first one, a tenth outside the parts."""
    plain = method == PLAIN
    task = ("dialogue", "math_reasoning")[question % 2]
    parts = dict.fromkeys(PARTS, 0.0) | {"score": 0.5 * seconds, "propose": 0.2 * seconds, "draft": 0.1 * seconds}
    return Answer(
        method=method,
        question=str(question),
        category="",
        task=task,
        prompt_tokens=5,
        prompt=text,
        emitted=10,
        seconds=seconds,
        first_seconds=seconds / 5,
        decode_seconds=seconds * 4 / 5,
        passes=10 if plain else 5,
        drafted=0 if plain else 8,
        accepted=0 if plain else 5,
        drafted_by_position=[] if plain else [5, 3],
        accepted_by_position=[] if plain else [4, 1],
        rounds=[0, 0, 0] if plain else [1, 3, 1],
        parts=parts,
        status=REFERENCE if plain else IDENTICAL,
        same_text=None if plain else True,
        compared=10,
    )


def measured_log(
    path: Path,
    texts: Sequence[str] = ("first", HOSTILE, "third"),
    methods: Sequence[str] = tuple(SPEEDS),
    temperature: float = 0.0,
    **provenance: object,
) -> tuple[Plan, ResultsLog]:
    """A finished run. `methods`: their names may have options; the speed is the recipe's."""
    items = tuple(Item(str(i), "", text, "") for i, text in enumerate(texts))
    plan = Plan(items, Settings("smollm2", 2, 64, temperature, methods=tuple(methods)), warmup=0)
    log = ResultsLog(path, plan.identity({"commit": "abc1234", "cpu": "a <b>processor</b>", "torch": "2"}))
    log.open()
    log.begin({"command": "draftwood bench recipes --questions /some/where/question.jsonl", **provenance})
    facts = {"precision": "int8", "device": "cpu", "lossless": dict.fromkeys(methods, True), "not_compared": {}}
    log.note({OURS: facts})
    for i, text in enumerate(texts):
        speeds = {name: SPEEDS.get(name.partition(":")[0], SPEEDS[MIXED])[i % 3] for name in methods}
        answers = [made_answer(name, i, text, seconds) for name, seconds in speeds.items()]
        log.add(str(i), answers, {"foreign_cores": 0.1 * i, "order": list(methods)})
    return plan, log

"""bench hostile: does a recipe stay at plain decoding's speed on workloads that leave it little to gain?

Both methods answer every request before the next one is asked, each with one engine for the whole workload, as a server has
it: what was learned of earlier requests stays, their cache entries do not. A recipe fails a workload where

    the whole run     the interval of the ratio of both methods' seconds lies below FLOOR as a whole
    a stretch         more than LONGEST decoding rounds in a row are below FLOOR, by median costs
    the texts         one differs from plain decoding's, or the drafter was disabled
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any

from draftwood import recipes
from draftwood.bench.micro.target_pass import order
from draftwood.bench.spec.text_equality import Difference, difference, following, not_compared
from draftwood.bench.statistics import Ratio, ratio_of_means
from draftwood.bench.study.hostile.faults import Switch, slow_runner, with_slow_drafts, with_wrong_drafts
from draftwood.bench.study.hostile.workloads import HOT, Fault, Workload
from draftwood.bench.study.hostile.worst_stretch import LEAST, Decoded, MedianCosts, Stretch, worst_stretch
from draftwood.bench.trace.recorder import Recorder
from draftwood.bench.trace.records import Record, RoundRecord
from draftwood.core.config import EngineConfig
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.errors import OptionError
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded
from draftwood.runners.open import runner_of

PLAIN = "autoregressive"
FLOOR, LONGEST = 0.98, 50
SPARE = 256  # cache entries of a slot beyond prompt and answer, for trees
WARM_PROMPT, WARM_TOKENS = 8, 4


@dataclass(slots=True)
class Row:
    """One workload. `rounds`: that accepted all, some, none of their draft; `drafting`: the share of decoding rounds that
    drafted, without and with the fault; `plain_round`: the recipe's rounds without a draft over plain decoding's rounds, in
    seconds."""

    workload: str
    answers: int = 0
    tokens: int = 0
    identical: int = 0
    near: list[tuple[int, Difference]] = field(default_factory=list[tuple[int, Difference]])
    wrong: list[tuple[int, Difference]] = field(default_factory=list[tuple[int, Difference]])
    rounds: list[int] = field(default_factory=lambda: [0, 0, 0])
    decoding: int = 0
    drafting: tuple[float | None, float | None] = (None, None)
    speed: Ratio | None = None
    worst: Stretch | None = None
    plain_round: float | None = None
    disabled: list[str] = field(default_factory=list[str])
    trace: list[Sequence[int]] = field(default_factory=list[Sequence[int]])  # of decoding rounds, see `traced`

    @property
    def failures(self) -> list[str]:
        """What is missed, in words; empty: nothing."""
        found: list[str] = []
        if self.speed is not None and self.speed.high is not None and self.speed.high < FLOOR:
            found.append("the whole run")
        if self.worst is not None and self.worst.ratio < FLOOR:
            found.append(f"{self.worst.rounds} rounds from {self.worst.first} on")
        if self.wrong:
            found.append(f"{len(self.wrong)} texts differ")
        if self.disabled:
            found.append(f"the drafter was disabled: {self.disabled[0]}")
        return found

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "failures": self.failures}


class Side:
    """One method on one workload: its engine, and what its rounds and requests took."""

    def __init__(self, loaded: Loaded, recipe: Recipe, workload: Workload, switch: Switch, slow: float) -> None:
        longest = max(len(prompt) for group in workload.groups for prompt in group)
        length = min(longest + workload.params.max_tokens + SPARE, loaded.info.max_positions)
        self.workload, self.switch = workload, switch
        self.llm = LLM(loaded, recipe, config=EngineConfig(max_num_seqs=workload.batch, max_model_len=length))
        if workload.fault in (Fault.SLOW_MACHINE, Fault.SLOW_DRAFTS):
            several = workload.fault is Fault.SLOW_DRAFTS
            self.llm.engine.runner = slow_runner(self.llm.engine.runner, switch, slow, several=several)
        self.recorder = Recorder(self._keep)
        self.llm.record(self.recorder)
        self.seconds: list[float] = []
        self.requests: list[list[Request]] = []
        self.rounds: list[Decoded] = []
        self._warm_up()

    def _keep(self, record: Record) -> None:
        if isinstance(record, RoundRecord) and record.decodes and record.emitted and len(record.sequences) == 1:
            self.rounds.append(Decoded(record, self.switch.on))

    def _warm_up(self) -> None:
        """A few tokens of another prompt, which nothing is kept of."""
        other = 1 - min(self.workload.groups[0][0][0], 1)  # shares no prefix with the first prompt
        params = replace(self.workload.params, max_tokens=WARM_TOKENS, ignore_eos=True)
        self._run([self.llm.request([other] * WARM_PROMPT, params)], lambda _: False)
        self.rounds.clear()

    def answer(self, index: int) -> None:
        """The requests of one group, together; timed from the first to the last token of all."""
        load = self.workload
        made = [self.llm.request(list(p), load.of(index, i)) for i, p in enumerate(load.groups[index])]
        self.llm.engine.runner.forget()
        gc.collect()
        start = perf_counter()
        self._run(made, lambda emitted: load.faulty(index, emitted))
        self.seconds.append(perf_counter() - start)
        self.requests.append(made)

    def _run(self, made: Sequence[Request], faulty: Callable[[int], bool]) -> None:
        engine = self.llm.engine
        for request in made:
            engine.add(request)
        while engine.has_work:
            self.switch.on = faulty(min(len(request.output) for request in made))
            engine.step()
            self.recorder.flush()
        self.switch.on = False


def measure(
    loaded: Loaded,
    recipe: str | Recipe,
    workloads: Sequence[Workload],
    *,
    slow: float = 3.0,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Row]:
    """Every workload by plain decoding and by this recipe, request by request. `slow`: times as long after a fault of the
    machine. The first request is answered once more before, so that no code runs for the first time when it is timed."""
    runner = runner_of(loaded)
    own = recipes.build(recipe, runner, **following(recipe, HOT)) if isinstance(recipe, str) else recipe
    if why := not_compared(own, HOT):
        raise OptionError(f"{recipe} cannot be compared with plain decoding: {why}\nhint: for example auto")
    plain = recipes.build(PLAIN, runner)
    for number, workload in enumerate(workloads):
        say(f"{workload.name}: {len(workload.groups)} requests")
        if not number:
            for each in (plain, own):
                Side(loaded, each, workload, Switch(), slow).answer(0)
        switch = Switch()
        sides = [
            Side(loaded, plain, workload, switch, slow),
            Side(loaded, _with_fault(own, workload.fault, switch, loaded, slow), workload, switch, slow),
        ]
        for index in range(len(workload.groups)):
            for side in order(sides, seed + index):
                side.answer(index)
        yield row_of(*sides, seed=seed)


def _with_fault(recipe: Recipe, fault: Fault | None, switch: Switch, loaded: Loaded, slow: float) -> Recipe:
    if fault is Fault.USELESS:
        return with_wrong_drafts(recipe, switch, loaded.info.vocab_size)
    return with_slow_drafts(recipe, switch, slow) if fault is Fault.SLOW_MACHINE else recipe


def row_of(plain: Side, own: Side, *, seed: int = 0) -> Row:
    """What was measured, once both sides have answered everything."""
    row = Row(own.workload.name, decoding=len(own.rounds))
    for group, (wanted, got) in enumerate(zip(plain.requests, own.requests, strict=True)):
        for place, (a, b) in enumerate(zip(wanted, got, strict=True)):
            _add(row, own, a, b, group * own.workload.batch + place)
    row.speed = ratio_of_means(plain.seconds, own.seconds, seed=seed)
    row.worst = worst_stretch(own.rounds, plain.rounds, LONGEST)
    row.drafting = _share(own.rounds, faulty=False), _share(own.rounds, faulty=True)
    row.plain_round = _plain_round(own.rounds, plain.rounds)
    row.trace = [traced(each) for each in own.rounds]
    return row


def traced(each: Decoded) -> tuple[int, int, int, int, int]:
    """One round in the results: whether the fault was there, tokens of the target pass, draft passes, emitted tokens, and
    microseconds."""
    times = each.times
    return int(each.faulty), times.tokens, times.draft_passes, each.record.emitted, round(1e6 * times.total)


def _plain_round(own: Sequence[Decoded], plain: Sequence[Decoded]) -> float | None:
    """Median seconds of rounds without a draft and without a fault; None where there are too few."""
    a, b = ([each for each in rounds if not each.faulty and not each.drafts] for rounds in (own, plain))
    if min(len(a), len(b)) < LEAST:
        return None
    ours, theirs = MedianCosts(a).plain(False), MedianCosts(b).plain(False)
    return ours / theirs if ours and theirs else None


def _add(row: Row, side: Side, wanted: Request, got: Request, index: int) -> None:
    stats = got.stats
    row.answers += 1
    row.tokens += len(got.output)
    row.disabled += [why for why in (got.error, stats.disabled) if why]
    for i, count in enumerate((stats.rounds_all, stats.rounds_some, stats.rounds_none)):
        row.rounds[i] += count
    found = difference(side.llm.runner, got.prompt, got.output, wanted.output, got.params)
    if found is None:
        row.identical += 1
    else:
        near = found.near and side.llm.runner.info.near_ties
        (row.near if near else row.wrong).append((index, found))


def _share(rounds: Sequence[Decoded], *, faulty: bool) -> float | None:
    found = [each.drafts for each in rounds if each.faulty == faulty]
    return sum(found) / len(found) if found else None

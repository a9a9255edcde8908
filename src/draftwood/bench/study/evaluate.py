"""eval: acceptance, equality with plain decoding's text, and speed-up of one recipe, measured and predicted.

Every prompt is answered four times, plain, recipe, recipe, plain, by fresh engines in one process, so that a slow moment
affects both. The cost model is fitted on every other prompt; its prediction is compared with the clock on the rest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwood import recipes
from draftwood.bench import other_processes
from draftwood.bench.spec.text_equality import EVERY, difference, few_enough, not_compared, tokens_per_tie
from draftwood.bench.statistics import Ratio, ratio_of_means
from draftwood.bench.study.predict import Forecast, Pair, Spent, estimated, fitted, observed
from draftwood.bench.study.timed_answer import Answer, TimedEngine
from draftwood.controllers.costs.cost import CostModel
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.errors import OptionError
from draftwood.models.loading.load import Loaded
from draftwood.runners.open import runner_of
from draftwood.train.loop.measure import Acceptance, acceptance

PLAIN = "autoregressive"
SHORTEST = 2  # decoding rounds of an answer that can be timed
SPARE = 256  # cache entries of a slot beyond prompt and answer, for trees

Prompt = Sequence[int]
Say = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """The four answers to a prompt, and how many cores other processes used meanwhile."""

    plain: tuple[Answer, Answer]
    recipe: tuple[Answer, Answer]
    foreign: float = 0.0

    @property
    def timed(self) -> bool:
        """Whether all four decoded long enough to be timed."""
        return all(len(a.decoding) >= SHORTEST for a in (*self.plain, *self.recipe))


@dataclass(frozen=True, slots=True)
class Text:
    """Comparison of the recipe's texts with plain decoding's. Not `judged`: `why`."""

    judged: bool
    why: str = ""
    answers: int = 0
    identical: int = 0
    compared: int = 0  # tokens up to and including the first difference
    near: int = 0
    wrong: tuple[str, ...] = ()
    every: int = EVERY  # tokens among which one near tie is no sign of an error

    @property
    def good(self) -> bool:
        return not self.judged or (not self.wrong and few_enough(self.near, self.compared, self.every))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One temperature. `whole`: the speed-up including prefill; `decoding`: without; over all prompts."""

    temperature: float
    accepted: Acceptance
    text: Text
    decoding: Ratio | None
    whole: Ratio | None
    forecast: Forecast | None
    foreign: tuple[float, ...]  # cores used by other processes, prompt by prompt
    failures: tuple[str, ...] = ()

    @property
    def disturbed(self) -> bool:
        """Whether other processes used so much CPU that the times are not valid."""
        return bool(self.foreign) and sum(self.foreign) / len(self.foreign) >= other_processes.BUSY


@dataclass(slots=True)
class Evaluator:
    """The recipe as users run it, and plain decoding, on one copy of the weights."""

    loaded: Loaded
    recipe: Recipe
    max_tokens: int = 64
    seed: int = 0
    top_p: float = 1.0
    pause: bool = True  # wait until our own threads are idle between two answers
    cost_model: dict[str, CostModel] = field(default_factory=dict[str, CostModel])

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that cannot be answered, before any is."""
        longest = self.loaded.info.max_positions
        for i, prompt in enumerate(prompts, start=1):
            if not prompt:
                raise OptionError(f"prompt {i} is empty\nhint: at least one token each")
            if len(prompt) >= longest:
                raise OptionError(
                    f"prompt {i} has {len(prompt)} tokens, the model's context holds {longest} with the answer\n"
                    "hint: leave it out, or shorten it"
                )

    def run(self, prompts: Sequence[Prompt], temperature: float, say: Say = lambda done, total: None) -> Evaluation:
        """Every prompt four times."""
        self.check(prompts)
        for kind in (PLAIN, ""):
            self._answer(kind, prompts[0], self._params(0, temperature))  # the first of anything is slow
        asked: list[Asked] = []
        for i, prompt in enumerate(prompts):
            say(i, len(prompts))
            asked.append(self._ask(prompt, self._params(i, temperature)))
        say(len(prompts), len(prompts))
        failures = [f"prompt {i}: {x.error}" for i, a in enumerate(asked, 1) for x in a.recipe[:1] if x.error]
        return Evaluation(
            temperature=temperature,
            accepted=acceptance([(a.recipe[0].tokens, a.recipe[0].stats) for a in asked]),
            text=self._judge(prompts, asked, temperature),
            decoding=speed_up(asked, self.seed),
            whole=ratio_of_means(
                [sum(x.seconds for x in a.plain) for a in asked], [sum(x.seconds for x in a.recipe) for a in asked]
            ),
            forecast=forecast(asked, self.seed),
            foreign=tuple(a.foreign for a in asked),
            failures=tuple(failures),
        )

    def _params(self, index: int, temperature: float) -> SamplingParams:
        return SamplingParams(
            temperature=temperature, top_p=self.top_p, seed=self.seed + index, max_tokens=self.max_tokens
        )

    def _ask(self, prompt: Prompt, params: SamplingParams) -> Asked:
        meter = other_processes.Meter(())
        first = self._answer(PLAIN, prompt, params)
        ours = self._answer("", prompt, params), self._answer("", prompt, params)
        last = self._answer(PLAIN, prompt, params)
        return Asked((first, last), ours, meter.read().get("foreign_cores", 0.0))

    def _answer(self, kind: str, prompt: Prompt, params: SamplingParams) -> Answer:
        """An empty `kind` is the recipe."""
        cost_model = self.cost_model.setdefault(kind, CostModel())
        length = min(len(prompt) + params.max_tokens + SPARE, self.loaded.info.max_positions)
        engine = TimedEngine(self.loaded, kind or self.recipe, cost_model, length)
        return engine.answer(prompt, params, pause=self.pause)

    def _judge(self, prompts: Sequence[Prompt], asked: Sequence[Asked], temperature: float) -> Text:
        why = not_compared(self.recipe, temperature)
        identical, compared, near, wrong = 0, 0, 0, list[str]()
        for i, each in enumerate(() if why else asked):
            plain = each.plain[0].tokens
            params = self._params(i, temperature)
            both = [difference(runner_of(self.loaded), prompts[i], a.tokens, plain, params) for a in each.recipe]
            found = next((one for one in both if one is not None), None)
            compared += len(plain) if found is None else found.position + 1
            if found is None:
                identical += 1
            elif found.near and self.loaded.info.near_ties:
                near += 1
            else:
                wrong.append(f"prompt {i + 1}, {found}")
        every = tokens_per_tie(self.loaded.info.backend)
        return Text(not why, why, len(asked), identical, compared, near, tuple(wrong), every)


def evaluator(
    loaded: Loaded, recipe: str, *, max_tokens: int = 64, seed: int = 0, top_p: float = 1.0, **options: Any
) -> Evaluator:
    """By the recipe's name, with its options."""
    return Evaluator(loaded, recipes.build(recipe, runner_of(loaded), **options), max_tokens, seed, top_p)


def forecast(asked: Sequence[Asked], seed: int = 0) -> Forecast | None:
    """Fitted on every other prompt, from the first on, and compared with the others. Of those, the contexts and tree sizes
    are given to the prediction, no times and no tokens. None where one half is empty."""
    usable = [a for a in asked if a.timed]
    known, others = usable[::2], usable[1::2]
    clock = speed_up(others, seed)
    if not known or clock is None:
        return None
    cost_model = fitted([*_rounds(known, "plain"), *_rounds(known, "recipe")])
    predicted = Pair(*(estimated(_rounds(known, s), _rounds(others, s), cost_model) for s in ("plain", "recipe")))
    measured = Pair(*(observed(_rounds(others, side)) for side in ("plain", "recipe")))
    return Forecast(predicted, measured, clock)


def speed_up(asked: Sequence[Asked], seed: int = 0) -> Ratio | None:
    """Plain decoding's seconds for as many tokens over the recipe's, after the first token; bootstrap over prompts."""
    plain, ours = list[float](), list[float]()
    for a in asked:
        if a.timed:
            tokens = sum(r.emitted for r in a.recipe[0].decoding)
            plain.append(tokens * sum(x.per_token for x in a.plain) / 2)
            ours.append(tokens * sum(x.per_token for x in a.recipe) / 2)
    return ratio_of_means(plain, ours, seed=seed)


def _rounds(asked: Sequence[Asked], side: str) -> list[Spent]:
    return [r for a in asked for x in getattr(a, side) for r in x.decoding]

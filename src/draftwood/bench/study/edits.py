"""bench edits: answers that leave their prediction and follow it again, at known rates.

A small model does not follow instructions to edit a text well, so its answer cannot be compared with a text to be edited.
Here it is the other way round: the model's own plain answer is edited, by words and lines that are deleted, inserted and
replaced, and the edited text is handed in as the prediction. The real answer then differs from its prediction at a known
rate, and a lossless recipe has to give the plain answer.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from draftwood.bench.spec.text_equality import Difference, difference, following, not_compared
from draftwood.core.config import EngineConfig
from draftwood.core.sampling.params import SamplingParams
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded
from draftwood.results import Result

PLAIN = "autoregressive"
LONGEST = 4  # words of an edit
LINES = 0.1  # share of the edits that go to the end of the line

PROMPTS = (
    "Write a Python function that adds up the prices of a list of items, and explain each line.",
    "Rewrite this code with comments:\n\ndef area(shape):\n    if shape.kind == 'circle':\n"
    "        return 3.14 * shape.r ** 2\n    return shape.width * shape.height\n",
    "Write a Python class Queue with the methods push, pop and size. Show how it is used.",
    "Summarize: The harbour was closed for two days because of the storm. Ships waited outside, and the market had no fish. "
    "On the third day the wind turned, the first boats came in before sunrise, and by noon every stall was open again.",
    "Write a short README for a program that counts the words of a file, with the sections Install, Use and Limits.",
    "Write a SQL table for the books of a library, and three queries on it.",
)


def edited(text: str, rate: float, seed: int = 0) -> str:
    """The text with about this share of its words deleted, replaced by other words of the text, or preceded by some. The
    same seed gives the same edits."""
    rng, words = random.Random(seed), re.findall(r"\s*\S+", text)
    lines = re.findall(r"\n[^\n]*\S[^\n]*", text)
    result: list[str] = []
    at = 0
    while at < len(words):
        kind, span, whole = "keep", rng.randint(1, LONGEST), bool(lines) and rng.random() < LINES
        if rng.random() * (1 + LONGEST) / 2 < rate:  # spans have so many words on average
            kind = rng.choice(("delete", "insert", "replace"))
        if whole:  # up to the end of the line
            span = next((i for i in range(1, len(words) - at) if "\n" in words[at + i]), len(words) - at)
        if kind in ("insert", "replace"):
            result += [rng.choice(lines)] if whole else rng.choices(words, k=span)
        if kind in ("keep", "insert"):
            result.append(words[at])
            span = 1
        at += span
    return "".join(result)


@dataclass(slots=True)
class Row:
    """One recipe at one rate of edits. `rounds`: that accepted all, some, none of their draft."""

    recipe: str
    rate: float
    answers: int = 0
    identical: int = 0
    tokens: int = 0
    passes: int = 0
    predicted: int = 0  # tokens of the predictions
    accepted: int = 0  # prediction tokens, as results count them
    rejected: int = 0
    rounds: list[int] = field(default_factory=lambda: [0, 0, 0])
    disabled: int = 0
    near: list[tuple[int, Difference]] = field(default_factory=list[tuple[int, Difference]])
    wrong: list[tuple[int, Difference]] = field(default_factory=list[tuple[int, Difference]])
    why: str = ""  # its texts are not compared

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def good(self) -> bool:
        return not self.wrong and not self.disabled

    def add(self, result: Result, predicted: int) -> None:
        stats = result.stats
        self.answers += 1
        self.tokens += result.num_tokens
        self.passes += stats.target_passes
        self.predicted += predicted
        self.accepted += stats.accepted_prediction_tokens
        self.rejected += stats.rejected_prediction_tokens
        self.disabled += stats.disabled is not None
        for i, count in enumerate((stats.rounds_all, stats.rounds_some, stats.rounds_none)):
            self.rounds[i] += count


@dataclass(frozen=True, slots=True)
class Setting:
    """Questions, rates of edits from 0 to 1, and sampling."""

    questions: tuple[str, ...]
    rates: tuple[float, ...]
    params: SamplingParams


def measure(
    loaded: Loaded, names: Sequence[str], setting: Setting, say: Callable[[str], None] = lambda _: None
) -> Iterator[Row]:
    """Every recipe at every rate; an engine serves all rates, as it would serve its users."""
    seed, config = setting.params.seed or 0, EngineConfig(max_num_seqs=1)
    each = [replace(setting.params, seed=seed + i) for i in range(len(setting.questions))]
    say(f"{PLAIN}: the answers that are edited")
    plain = LLM(loaded, PLAIN, config=config).chat(list(setting.questions), each, progress=False)
    for name in names:
        llm = LLM(loaded, name, config=config, **following(name, setting.params.temperature))
        why = not_compared(llm.recipe, setting.params.temperature)
        for rate in setting.rates:
            say(f"{name}: {rate:.0%} of the words edited")
            row = Row(name, rate, why=why)
            for i, (question, wanted) in enumerate(zip(setting.questions, plain, strict=True)):
                text = edited(wanted.text, rate, seed + i)
                result = llm.chat(question, replace(each[i], prediction=text))
                row.add(result, len(loaded.tokenizer.encode(text)))
                if not why:
                    _compare(row, llm, i, llm.chat_prompt(question), result, wanted, each[i])
            yield row


def _compare(
    row: Row, llm: LLM, index: int, prompt: list[int], got: Result, wanted: Result, params: SamplingParams
) -> None:
    if got.token_ids == wanted.token_ids:
        row.identical += 1
        return
    found = difference(llm.runner, prompt, got.token_ids, wanted.token_ids, params)
    assert found is not None
    (row.near if found.near and llm.runner.info.near_ties else row.wrong).append((index, found))

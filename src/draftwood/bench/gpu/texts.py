"""Whole answers: tokens per second of recipes at batch sizes, each over plain decoding in the same run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from draftwood.bench.gpu.passes import release
from draftwood.bench.statistics import Ratio, percentile, ratio_of_means
from draftwood.core.config import EngineConfig
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded

PLAIN = "autoregressive"
PROMPTS = (
    "Explain to a child why the sea is salty.",
    "List six things to check before a long walk in the mountains.",
    "Write a short letter in which a gardener asks a neighbour for help in August.",
    "What is the difference between a loan and a mortgage?",
    "Describe how bread is made, step by step.",
    "Give three arguments for and three against school uniforms.",
    "Tell a story about a lighthouse keeper who finds a message.",
    "How does a bicycle stay upright while it moves?",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A recipe with its options, as on the command line, at a batch size. `label`: what the page calls it."""

    recipe: str
    batch: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class Speed:
    """`over_plain`: tokens per second over those of plain decoding at this batch size."""

    recipe: str
    batch: int
    tokens_per_second: float
    tokens_per_pass: float
    over_plain: Ratio | None


@dataclass(frozen=True, slots=True)
class Run:
    """One batch of answers."""

    seconds: float
    tokens: int
    passes: int


def measure(
    loaded: Loaded,
    cases: Sequence[Case],
    *,
    max_tokens: int = 128,
    repeats: int = 5,
    say: Callable[[int, int], None] = lambda done, total: None,
) -> list[Speed]:
    """Cases of one batch size run in turn, so that a change of the machine meets all of them. One case of each size must be
    plain decoding; the first repeat is a warm-up and not counted."""
    found: list[Speed] = []
    sizes = sorted({case.batch for case in cases})
    done, total = 0, len(sizes) * (repeats + 1)
    for batch in sizes:
        own = [case for case in cases if case.batch == batch]
        opened = [opened_llm(loaded, case) for case in own]
        runs: list[list[Run]] = [[] for _ in own]
        for turn in range(repeats + 1):
            for i, llm in enumerate(opened):
                run = answer(llm, batch, max_tokens, turn)
                if turn:
                    runs[i].append(run)
            done += 1
            say(done, total)
        for llm in opened:
            llm.close()
        del opened, llm
        release(loaded.info.device)
        plain = next(each for case, each in zip(own, runs, strict=True) if case.recipe == PLAIN)
        found += [speed(case, each, plain) for case, each in zip(own, runs, strict=True)]
    return found


def opened_llm(loaded: Loaded, case: Case) -> LLM:
    longest = min(1024, loaded.info.max_positions)
    config = EngineConfig(max_num_seqs=case.batch, max_model_len=longest, disable_slow_drafts=False)
    return LLM(loaded, case.recipe, config=config)


def answer(llm: LLM, batch: int, max_tokens: int, turn: int) -> Run:
    """Greedy answers of a fixed length. Prompts differ within the batch and from turn to turn."""
    prompts = [llm.chat_prompt(f"{PROMPTS[i % len(PROMPTS)]} ({turn}-{i})") for i in range(batch)]
    start = perf_counter()
    results = llm.generate(prompts, max_tokens=max_tokens, ignore_eos=True, temperature=0.0, progress=False)
    seconds = perf_counter() - start
    tokens = sum(len(r.token_ids) for r in results)
    return Run(seconds, tokens, sum(r.stats.target_passes for r in results))


def speed(case: Case, runs: Sequence[Run], plain: Sequence[Run]) -> Speed:
    """Both ran the same prompts in the same turns."""
    rates = [run.tokens / run.seconds for run in runs]
    passes = sum(run.passes for run in runs)
    ratio = None if runs is plain else ratio_of_means(rates, [run.tokens / run.seconds for run in plain])
    tokens = sum(run.tokens for run in runs)
    middle = percentile(rates, 50) or 0.0
    return Speed(case.label or case.recipe, case.batch, middle, tokens / passes if passes else 0.0, ratio)

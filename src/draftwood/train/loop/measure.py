"""Acceptance measured with the engine: held-out prompts, the recipe as users run it, the weights as they are stored."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftwood.core.config import EngineConfig
from draftwood.core.request import Stats
from draftwood.core.sampling.params import SamplingParams
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded
from draftwood.train.data.dialogues import Dialogue

# Tokens per pass below which no drafter pays: on a CPU, verifying a draft of three tokens takes about 1.3 plain passes.
LEAST_USEFUL = 1.3


@dataclass(frozen=True, slots=True)
class Acceptance:
    """tokens_per_pass counts passes that emitted tokens. by_position[i]: of the rounds that drafted deeper than i tokens,
    the share that accepted more than i."""

    tokens: int
    passes: int
    by_position: tuple[float, ...]
    rounds: tuple[int, int, int] = (0, 0, 0)  # that accepted all, some, none of their draft
    texts: tuple[tuple[int, ...], ...] = field(default=(), repr=False)

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / max(self.passes, 1)


def prompts_of(dialogues: Sequence[Dialogue], count: int, longest: int = 1024) -> list[list[int]]:
    """Prompts of `count` dialogues, evenly spread over the file."""
    short = [d for d in dialogues if d.answers[0][0] <= longest]
    step = max(len(short) // max(count, 1), 1)
    return [d.tokens[: d.answers[0][0]].tolist() for d in short[::step][:count]]


def measure(
    loaded: Loaded,
    recipe: str,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int = 64,
    temperature: float = 0.0,
    seed: int = 0,
    batch: int = 8,
    **options: Any,
) -> Acceptance:
    """Generates an answer to each prompt and counts accepted tokens by depth."""
    longest = max(map(len, prompts)) + tokens + 256
    config = EngineConfig(max_num_seqs=min(batch, len(prompts)), max_model_len=min(longest, loaded.info.max_positions))
    llm = LLM(loaded, recipe, config=config, **options)
    params = [SamplingParams(temperature=temperature, seed=seed + i, max_tokens=tokens) for i in range(len(prompts))]
    results = llm.generate([list(p) for p in prompts], params)
    return acceptance([(r.token_ids, r.stats) for r in results])


def acceptance(answers: Iterable[tuple[Sequence[int], Stats]]) -> Acceptance:
    """Accepted tokens of several answers, added up by depth."""
    texts: list[tuple[int, ...]] = []
    drafted, accepted, rounds, passes = Counter[int](), Counter[int](), [0, 0, 0], 0
    for tokens, stats in answers:
        texts.append(tuple(tokens))
        passes += stats.target_passes
        drafted.update(dict(enumerate(stats.drafted)))
        accepted.update(dict(enumerate(stats.accepted)))
        own = (stats.rounds_all, stats.rounds_some, stats.rounds_none)
        rounds = [a + b for a, b in zip(rounds, own, strict=True)]
    return Acceptance(
        tokens=sum(map(len, texts)),
        passes=passes,
        by_position=tuple(accepted[i] / drafted[i] for i in range(len(drafted))),
        rounds=(rounds[0], rounds[1], rounds[2]),
        texts=tuple(texts),
    )


def head_file(folder: Path, recipe: str) -> Path:
    return folder / f"{recipe}.safetensors"

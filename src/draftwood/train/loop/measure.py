"""Acceptance measured with the engine: held-out prompts, the recipe as users run it, the weights as they are stored."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from draftwood.core.config import EngineConfig
from draftwood.core.request import Stats
from draftwood.core.sampling.params import SamplingParams
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded
from draftwood.train.data.dialogues import Dialogue

# Below so many tokens per pass drafting gains nothing: on a CPU, verifying three tokens takes about 1.3 plain passes.
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
    texts, stats = zip(*((tuple(tokens), own) for tokens, own in answers), strict=True)
    drafted, accepted = (
        [sum(counts) for counts in zip_longest(*(getattr(s, name) for s in stats), fillvalue=0)]
        for name in ("drafted", "accepted")
    )
    return Acceptance(
        tokens=sum(map(len, texts)),
        passes=sum(s.target_passes for s in stats),
        by_position=tuple(Stats(drafted=drafted, accepted=accepted).acceptance_by_position),
        rounds=(sum(s.rounds_all for s in stats), sum(s.rounds_some for s in stats), sum(s.rounds_none for s in stats)),
        texts=texts,
    )


def head_file(folder: Path, recipe: str) -> Path:
    return folder / f"{recipe}.safetensors"

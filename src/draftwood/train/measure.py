"""Acceptance as the real engine sees it: held-out prompts, the recipe as users run it, the weights as they would ship."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftwood.core.config import EngineConfig
from draftwood.core.sampling import SamplingParams
from draftwood.llm import LLM
from draftwood.models.load import Loaded
from draftwood.train.dialogues import Dialogue


@dataclass(frozen=True, slots=True)
class Acceptance:
    """tokens_per_pass counts passes that emitted; by_position: of the rounds drafted so deep, the share that got there."""

    tokens: int
    passes: int
    by_position: tuple[float, ...]
    rounds: tuple[int, int, int] = (0, 0, 0)  # accepted all, some, none of their draft
    texts: tuple[tuple[int, ...], ...] = field(default=(), repr=False)

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / max(self.passes, 1)


def prompts_of(dialogues: Sequence[Dialogue], count: int, longest: int = 768) -> list[list[int]]:
    """Prompts of held-out dialogues, evenly spread over the file."""
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
    device: str = "cpu",
    **options: Any,
) -> Acceptance:
    """Generate after each prompt; what was accepted, by depth."""
    longest = max(map(len, prompts)) + tokens + 256
    config = EngineConfig(max_slots=min(batch, len(prompts)), max_length=min(longest, loaded.model.max_positions))
    llm = LLM(loaded, recipe, config=config, device=device, **options)
    params = [SamplingParams(temperature=temperature, seed=seed + i, max_tokens=tokens) for i in range(len(prompts))]
    results = llm.generate([list(p) for p in prompts], params)
    drafted = [0] * 64
    accepted = [0] * 64
    for r in results:
        for levels, own in ((drafted, r.stats.drafted), (accepted, r.stats.accepted)):
            for i, n in enumerate(own):
                levels[i] += n
    deep = sum(1 for n in drafted if n)
    rounds = tuple(sum(getattr(r.stats, f"rounds_{word}") for r in results) for word in ("all", "some", "none"))
    return Acceptance(
        tokens=sum(len(r.tokens) for r in results),
        passes=sum(r.stats.target_passes for r in results),
        by_position=tuple(accepted[i] / drafted[i] for i in range(deep)),
        rounds=(rounds[0], rounds[1], rounds[2]),
        texts=tuple(r.tokens for r in results),
    )


def head_file(folder: Path, recipe: str) -> Path:
    return folder / f"{recipe}.safetensors"

"""Peer: opens a model, answers prompts given as token ids one at a time, and measures its own times."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Settings:
    """Equal for all methods. `eos` ends an answer; `context` is the longest prompt with its answer."""

    model: str
    threads: int
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    methods: tuple[str, ...] = ()  # recipes; other peers are one method each
    eos: tuple[int, ...] = ()
    context: int = 0
    dtype: str = "auto"  # of our recipes; each peer has its own precision


class Peer(Protocol):
    """Runs in a worker process."""

    def open(self, settings: Settings) -> dict[str, Any]:
        """Load the model. Returns facts for the record: "precision", what it computes in, versions, threads."""
        ...

    def answer(self, method: str, prompt: Sequence[int], index: int) -> dict[str, Any]:
        """Fields of an Answer: tokens, emitted, seconds, ... Never uses anything of an earlier answer."""
        ...

"""What a peer is: something that opens a model and answers prompts given as token ids, one at a time, timing itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Settings:
    """The same for everybody. `eos` ends an answer; `context` is the longest prompt and its answer."""

    model: str
    threads: int
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    methods: tuple[str, ...] = ()  # recipes; other peers are one method each
    eos: tuple[int, ...] = ()
    context: int = 0
    dtype: str = "auto"  # of our recipes; peers compute as they always do


class Peer(Protocol):
    """Lives in a worker process. Between answers it waits for the next line and does nothing."""

    def open(self, settings: Settings) -> dict[str, Any]:
        """Load the model; versions and other facts for the record."""
        ...

    def answer(self, method: str, prompt: Sequence[int], index: int) -> dict[str, Any]:
        """Fields of an Answer: tokens, emitted, seconds, ... Nothing of an earlier answer may help with this one."""
        ...

"""Peers: other engines that answer the same questions, each in a process of its own.

A peer opens a model, answers prompts given as token ids one at a time, and measures its own times.

draftwood              our own recipes, all on one copy of the weights
transformers           plain generate, in float32 or, on a GPU, as our recipes; transformers-lookup: its prompt lookup
llamacpp               llama.cpp through xllamacpp on the GGUF file; llamacpp-ngram-...: its modes without a draft model;
                       llamacpp-draft: with a draft model, the GGUF file `draft`
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from draftwood.errors import OptionError, UnknownNameError

OURS = "draftwood"
DRAFTING = "llamacpp-draft"
NGRAM_MODES = ("simple", "map-k", "map-k4v", "mod", "cache")
NAMES = (
    "transformers",
    "transformers-lookup",
    "llamacpp",
    DRAFTING,
    *(f"llamacpp-ngram-{mode}" for mode in NGRAM_MODES),
)
PACKAGE = {"transformers": "transformers", "llamacpp": "xllamacpp"}


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
    dtype: str = "auto"  # of our recipes, and of transformers on a GPU; each peer has its own precision
    device: str = "auto"  # of our recipes and transformers; llama.cpp runs on the CPU
    draft: str = ""  # the draft model of llama.cpp


class Peer(Protocol):
    """Runs in a worker process."""

    def open(self, settings: Settings) -> dict[str, Any]:
        """Load the model. Returns facts for the record: "precision", what it computes in, "device", versions, threads."""
        ...

    def answer(self, method: str, prompt: Sequence[int], index: int) -> dict[str, Any]:
        """Fields of an Answer: tokens, emitted, seconds, ... Never uses anything of an earlier answer."""
        ...


def check(names: Sequence[str], model: str, draft: str = "") -> None:
    """Refuse peers that are unknown, not installed, or unable to read this model; and a draft model that none would use."""
    if (DRAFTING in names) != bool(draft):
        raise OptionError(
            f"--draft {draft} is the draft model of {DRAFTING}, which is not among the peers\nhint: --peers {DRAFTING}"
            if draft
            else f"{DRAFTING} needs a draft model\nhint: --draft FILE, a GGUF file of the same family"
        )
    for name in names:
        if name not in NAMES:
            raise UnknownNameError("peer", name, NAMES)
        engine = name.partition("-")[0]
        if importlib.util.find_spec(PACKAGE[engine]) is None:
            raise OptionError(f"{name} needs {PACKAGE[engine]}, which is missing\nhint: pip install 'draftwood[peers]'")
        if engine == "llamacpp":
            from draftwood.bench.spec.peers.llamacpp import gguf_file

            gguf_file(draft if name == DRAFTING else model)
            gguf_file(model)


def make(name: str) -> Peer:
    """The peer, for use inside its own process. It loads nothing before it is opened."""
    if name == OURS:
        from draftwood.bench.spec.peers.ours import Ours

        return Ours()
    if name.startswith("transformers"):
        from draftwood.bench.spec.peers.transformers import Transformers

        return Transformers(lookup=name.endswith("-lookup"))
    from draftwood.bench.spec.peers.llamacpp import LlamaCpp

    return LlamaCpp(name.removeprefix("llamacpp").removeprefix("-"))

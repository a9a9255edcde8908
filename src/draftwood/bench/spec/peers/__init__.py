"""Peers: other engines that answer the same questions, each in a process of its own.

draftwood              our own recipes, all on one copy of the weights
transformers           plain generate in float32; transformers-lookup: its prompt lookup
llamacpp               llama.cpp through xllamacpp on the GGUF file; llamacpp-ngram-...: its modes without a draft model
"""

import importlib.util
from collections.abc import Sequence

from draftwood.bench.spec.peers.peer import Peer, Settings
from draftwood.errors import OptionError, UnknownNameError

__all__ = ["NAMES", "OURS", "Peer", "Settings", "check", "make"]

OURS = "draftwood"
NGRAM_MODES = ("simple", "map-k", "map-k4v", "mod", "cache")
NAMES = ("transformers", "transformers-lookup", "llamacpp", *(f"llamacpp-ngram-{mode}" for mode in NGRAM_MODES))
PACKAGE = {"transformers": "transformers", "llamacpp": "xllamacpp"}


def check(names: Sequence[str], model: str) -> None:
    """Refuse peers that are unknown, not installed, or unable to read this model."""
    for name in names:
        if name not in NAMES:
            raise UnknownNameError("peer", name, NAMES)
        engine = name.partition("-")[0]
        if importlib.util.find_spec(PACKAGE[engine]) is None:
            raise OptionError(f"{name} needs {PACKAGE[engine]}, which is missing\nhint: pip install 'draftwood[peers]'")
        if engine == "llamacpp":
            from draftwood.bench.spec.peers.llamacpp import gguf_file

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

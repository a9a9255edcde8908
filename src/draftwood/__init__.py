"""draftwood: exact speculative decoding. Language models answer faster, with the same distribution.

from draftwood import LLM
print(LLM("smollm2").generate("The capital of France is").text)
"""

import os
import sys
from typing import TYPE_CHECKING, Any

from draftwood._version import __version__

if TYPE_CHECKING:
    from draftwood import recipes
    from draftwood.core.recipe import Recipe
    from draftwood.core.sampling.params import SamplingParams
    from draftwood.llm import LLM
    from draftwood.server.async_llm import AsyncLLM

__all__ = ["LLM", "AsyncLLM", "Recipe", "SamplingParams", "__version__", "recipes"]

_HOMES = {
    "AsyncLLM": "draftwood.server.async_llm",
    "LLM": "draftwood.llm",
    "Recipe": "draftwood.core.recipe",
    "SamplingParams": "draftwood.core.sampling.params",
    "recipes": "draftwood.recipes",
}

# OpenMP threads sleep soon after their work, unless the user has set how long they spin. On a busy machine a thread that
# spins while another one waits for a core makes small operations ten to twenty times slower. Torch reads the setting when
# it is loaded.
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds; `draftwood --version` should not.
    if name not in _HOMES:
        raise AttributeError(f"module 'draftwood' has no attribute {name!r}")
    import importlib

    module = importlib.import_module(_HOMES[name])
    return module if name == "recipes" else getattr(module, name)

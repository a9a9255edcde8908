"""draftwood: language models that answer faster and say exactly the same.

from draftwood import LLM
print(LLM("smollm2").generate("The capital of France is").text)
"""

from typing import TYPE_CHECKING, Any

from draftwood._version import __version__

if TYPE_CHECKING:
    from draftwood import recipes
    from draftwood.core.recipe import Recipe
    from draftwood.core.sampling.params import SamplingParams
    from draftwood.llm import LLM

__all__ = ["LLM", "Recipe", "SamplingParams", "__version__", "recipes"]

_HOMES = {
    "LLM": ("draftwood.llm", "LLM"),
    "Recipe": ("draftwood.core.recipe", "Recipe"),
    "SamplingParams": ("draftwood.core.sampling.params", "SamplingParams"),
    "recipes": ("draftwood.recipes", None),
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds; `draftwood --version` should not.
    if name not in _HOMES:
        raise AttributeError(f"module 'draftwood' has no attribute {name!r}")
    import importlib

    home, attribute = _HOMES[name]
    module = importlib.import_module(home)
    return module if attribute is None else getattr(module, attribute)

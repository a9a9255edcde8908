"""Opens models for commands. Torch is imported here, when a command needs it; tests replace `open_llm`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwood.llm import LLM

PLAIN = "autoregressive"


def open_llm(
    model: str,
    recipe: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    slots: int = 1,
    options: Sequence[str] = (),
    batch_invariant: bool = False,
) -> "LLM":
    """A model with a recipe; `options` are KEY=VALUE. Wrong options are refused before the weights are read."""
    chosen = recipe_options(recipe, options)

    from draftwood.core.config import EngineConfig
    from draftwood.llm import LLM

    config = EngineConfig(max_num_seqs=slots, batch_invariant=batch_invariant)
    return LLM(model, recipe, dtype=dtype, device=device, config=config, **chosen)


def twin(llm: "LLM", recipe: str = PLAIN) -> "LLM":
    """The same weights with another recipe and a cache of its own."""
    from draftwood.llm import LLM

    return LLM(llm.loaded, recipe, config=llm.config)


def warm_up(*llms: "LLM") -> None:
    """Two tokens each, so that no measurement includes a first run."""
    for llm in llms:
        llm.generate("Hello", max_tokens=2)


def recipe_options(recipe: str, options: Sequence[str]) -> Mapping[str, Any]:
    """KEY=VALUE arguments as the types of the recipe's build()."""
    from draftwood import recipes
    from draftwood.option_parsing import converted

    return converted(recipe, recipes.load(recipe).build, recipes.options(recipe), options)

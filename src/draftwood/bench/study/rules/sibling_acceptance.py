"""profile: how often the first, second, third .. sibling is the accepted one, level by level, in real answers."""

from collections.abc import Callable, Sequence

from draftwood import recipes
from draftwood.bench.study.single_prompt import ask, engine, need_prompts
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.errors import OptionError
from draftwood.models.loading.load import Loaded
from draftwood.runners.open import runner_of
from draftwood.sizing.ranks import Counting, Ranks, tried_tree

SPARE = 256  # cache entries of a slot beyond prompt and answer: these trees are large

Say = Callable[[int, int], None]


def measure(
    loaded: Loaded,
    recipe: str | Recipe,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    width: int = 6,
    depth: int = 8,
    nodes: int = 48,
    max_tokens: int = 64,
    seed: int = 0,
    say: Say = lambda done, total: None,
) -> Ranks:
    """One answer to each prompt, with the recipe's drafter."""
    need_prompts(prompts)
    drafter = recipes.drafter(recipe, runner_of(loaded)) if isinstance(recipe, str) else recipe.drafter
    if Draw.DISTINCT not in drafter.draws:
        raise OptionError(
            f"{type(drafter).__name__} has no distribution to draw siblings from\nhint: try eagle3, fast_draft or medusa"
        )
    tree = tried_tree(width, nodes, depth)
    counter = Counting.of(tree)
    size = Fixed(depth=tree.depth, nodes=tree.num_nodes)
    whole = Recipe(drafter=drafter, policy=tree, verifier=counter, controller=size)
    for i, prompt in enumerate(prompts):
        say(i, len(prompts))
        llm = engine(loaded, whole, [prompt], max_tokens, SPARE)
        ask(llm, prompt, i, temperature=temperature, top_p=top_p, seed=seed, max_tokens=max_tokens)
    say(len(prompts), len(prompts))
    if not any(map(any, counter.kept)):
        raise OptionError("nothing was accepted\nhint: longer answers, or a drafter with a higher acceptance")
    return Ranks(counter.tried, counter.kept)

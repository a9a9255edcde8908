"""The block rule on another recipe's drafter."""

from typing import Any

import pytest

from draftwood import recipes
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.draft_model import DraftModel
from draftwood.errors import CompositionError, OptionError
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.verifiers.block import Block

NAMES = ["block_verification", "traversal_verification", "greedy_multipath_block"]
MORE = ["traversal_verification:paths=2", "greedy_multipath_block:counted=yes"]
INNER = "inner=speculative_sampling:draft=first:3"


@pytest.mark.parametrize("name", [*NAMES, *MORE])
def test_greedy_text_is_that_of_plain_decoding(name: str) -> None:
    target, prompts, params = tiny_runner(2), [[1, 2, 3], [4]], SamplingParams(max_tokens=24)
    plain = serve(make_engine(target, recipes.build("autoregressive", target)), prompts, params)
    got = serve(make_engine(target, recipes.build(f"{name}:{INNER}", target)), prompts, params)
    assert [r.output for r in got] == [r.output for r in plain]
    assert all(r.stats.disabled is None for r in got) and sum(r.stats.rounds_some + r.stats.rounds_all for r in got)


@pytest.mark.parametrize("name", [*NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_a_row_is_the_same_alone_and_beside_others(name: str) -> None:
    """Sampling rows and a greedy one, which takes the same road then as they do."""
    target, prompts = tiny_runner(2), [[1, 2, 3], [4], [5, 6]]
    params = [SamplingParams(temperature=t, seed=i, max_tokens=16) for i, t in enumerate((1.0, 0.0, 0.6))]
    together = serve(make_engine(target, recipes.build(f"{name}:{INNER}", target)), prompts, params)
    assert all(r.stats.disabled is None and len(r.output) == 16 for r in together)
    for i, prompt in enumerate(prompts):
        engine = make_engine(target, recipes.build(f"{name}:{INNER}", target))
        assert serve(engine, [prompt], [params[i]])[0].output == together[i].output


def test_only_the_drafter_of_the_inner_recipe_is_used() -> None:
    target = tiny_runner(2)
    recipe: Any = recipes.build(f"block_verification:depth=3:{INNER}", target)
    assert isinstance(recipe.drafter, DraftModel) and recipe.verifier == Block() and recipe.controller.depth == 3
    for inner in ("speculative_sampling:draft=first:2:depth=7", "fr_spec:inner=speculative_sampling:verifier=match"):
        with pytest.raises(OptionError, match=r"would have no effect\nhint: .* outer recipe"):
            recipes.build("block_verification", target, inner=inner)
    with pytest.raises(CompositionError, match="NGram supplies given"):
        recipes.build("block_verification", target, inner="prompt_lookup")

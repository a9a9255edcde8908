"""The small model that drafts, and the recipes that shape and judge its guesses differently."""

from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.draft_model import DraftModel
from draftwood.errors import CompositionError, OptionError
from draftwood.recipes import speculative_sampling
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import tiny_decoder, tiny_runner
from draftwood.testing.runs import make_engine, serve
from tree_recipes import PROMPTS, TARGET, plain_texts

SHARED = [
    "spectr:paths=3:depth=3",
    "mcsd:widths=3,2",
    "mcsd:widths=3,2:draw=iid",
    "canonical_multi_draft:depth=3",
    "canonical_multi_draft:widths=3,2",
    "canonical_multi_draft:paths=2:depth=2:solver=lp",
    "optimal_multi_draft:widths=3,2",
    "spechub:depth=2",
]


def run(name: str, target: Any, params: Any, **options: Any) -> list[Any]:
    got = serve(make_engine(target, recipes.build(name, target, **options)), PROMPTS, params)
    assert all(r.stats.disabled is None for r in got) and sum(r.stats.draft_tokens for r in got)
    return got


@pytest.mark.parametrize("name", SHARED)
def test_greedy_text_is_that_of_plain_decoding(name: str) -> None:
    got = run(name, TARGET, SamplingParams(max_tokens=24), inner="speculative_sampling:draft=first:3")
    assert [r.output for r in got] == plain_texts()


@pytest.mark.parametrize("name", SHARED)
def test_sampled_requests_of_any_length_are_served_and_a_perfect_draft_is_kept(name: str) -> None:
    target = tiny_runner(2)
    params = [SamplingParams(temperature=1.0, max_tokens=n, seed=n, top_p=0.9) for n in (1, 9, 30)]
    got = run(name, target, params, inner=f"speculative_sampling:draft=first:{target.info.num_layers}")
    assert [len(r.output) for r in got] == [1, 9, 30]
    assert not sum(r.stats.rounds_none for r in got), "q is p: something is accepted in every round"


@pytest.mark.parametrize(("inner", "kind"), [("eagle", "eagle"), ("fast_draft", "language")])
@pytest.mark.parametrize("name", ["spectr", "mcsd", "canonical_multi_draft", "optimal_multi_draft", "spechub"])
def test_trained_heads_draft_for_them(name: str, inner: str, kind: str, tmp_path: Path) -> None:
    target = tiny_runner(2)
    weights = str(write_head(tmp_path / "head.safetensors", random_head(kind, target)))
    run(f"{name}:inner={inner}:weights={weights}", target, SamplingParams(temperature=1.0, max_tokens=12, seed=3))


def test_one_option_names_what_drafts_and_a_drafter_without_distributions_is_refused() -> None:
    target = tiny_runner()
    with pytest.raises(OptionError, match=r"spectr has no option 'draft'\nhint: it has inner="):
        recipes.build("spectr", target, draft="first:1")
    with pytest.raises(CompositionError, match="NGram supplies given"):
        recipes.build("spectr", target, inner="prompt_lookup")
    recipe = recipes.build("spectr", target, inner="speculative_sampling:draft=first:1")
    assert isinstance(recipe.drafter, DraftModel)


def test_the_cache_of_a_small_model_lies_where_the_model_does() -> None:
    here, elsewhere = tiny_runner(2), CpuRunner(tiny_decoder(2).to("meta"))
    name = here.model.cache_specs[0].name
    for target, device in ((here, "cpu"), (elsewhere, "meta")):
        state: Any = speculative_sampling.small_model("first:1", target).init(1)
        assert state.runner.cache.store(name).device.type == device

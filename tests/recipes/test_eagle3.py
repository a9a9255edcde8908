"""eagle3 above temperature 0: the tree by match, or a chain of draws by the block rule where that is asked for."""

from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.errors import OptionError
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.block import Block
from draftwood.verifiers.match import Match
from tree_recipes import TARGET, same_as_plain, served, with_head


@pytest.fixture
def weights(tmp_path: Path) -> str:
    return with_head("eagle3", tmp_path).partition("weights=")[2]


@pytest.mark.parametrize("options", [{}, {"depth": 3}, {"depth": 3, "nodes": 3}, {"beam": 4}])
def test_sampled_requests_draft_chains_of_draws_under_the_block_rule(weights: str, options: dict[str, Any]) -> None:
    recipe: Any = recipes.build("eagle3", TARGET, weights=weights, verifier="block", **options)
    assert isinstance(recipe.policy, Chain) and isinstance(recipe.verifier, Block)
    assert isinstance(recipe.greedy_policy, BestFirst) and recipe.draft_temperature == 0.9


@pytest.mark.parametrize(
    "options", [{}, {"size": "paper"}, {"nodes": 8}, {"beam": 4}, {"depth": 2, "nodes": 6}, {"verifier": "match"}]
)
def test_without_it_the_tree_is_judged_by_match_at_any_temperature(weights: str, options: dict[str, Any]) -> None:
    recipe: Any = recipes.build("eagle3", TARGET, weights=weights, **options)
    assert isinstance(recipe.policy, BestFirst) and isinstance(recipe.verifier, Match) and recipe.greedy_policy is None


def test_greedy_text_is_that_of_plain_decoding_and_so_is_sampled_text_under_match(weights: str) -> None:
    assert same_as_plain("eagle3", weights=weights, depth=3, nodes=3)
    plain = [r.output for r in served("autoregressive", temperature=1.0)]
    got = served("eagle3", temperature=1.0, weights=weights, depth=3, nodes=3)
    assert [r.output for r in got] == plain
    drawn = served("eagle3", temperature=1.0, weights=weights, depth=3, nodes=3, verifier="block")
    assert [r.output for r in drawn] != plain, "another rule uses chance otherwise"
    assert sum(r.stats.draft_tokens for r in drawn) > 0


def test_a_draft_temperature_that_is_none_is_refused(weights: str) -> None:
    with pytest.raises(OptionError, match="draft_temperature"):
        recipes.build("eagle3", TARGET, weights=weights, draft_temperature=0)

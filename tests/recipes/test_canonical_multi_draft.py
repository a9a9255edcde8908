"""Independent draws as paths or as a tree, and a rule with two solvers."""

import pytest

from draftwood import recipes
from draftwood.core.legal_draws import Draw
from draftwood.errors import OptionError
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static
from draftwood.verifiers.selection import Selection

INNER = "speculative_sampling:draft=first:1"


def test_draws_are_paths_or_a_tree_but_not_both() -> None:
    target = tiny_runner()
    assert recipes.build("canonical_multi_draft", target, inner=INNER, paths=3).policy == Paths(3)
    recipe = recipes.build(
        "canonical_multi_draft:widths=2,2:solver=lp:size=3:inner=speculative_sampling:draft=first:1", target
    )
    assert recipe.policy == Static((2, 2), Draw.IID) and recipe.verifier == Selection("lp", 3)
    for both in ({"depth": 3}, {"paths": 3}, {"depth": 4}):  # given is what was given, be it the default
        with pytest.raises(OptionError, match="exclude each other"):
            recipes.build("canonical_multi_draft", target, inner=INNER, widths=(2, 2), **both)
    assert recipes.build("canonical_multi_draft", target, inner=INNER).policy == Paths(2)

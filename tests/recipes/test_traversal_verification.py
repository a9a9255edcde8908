"""Trees by widths, or paths of as many levels."""

from typing import Any

import pytest

from draftwood import recipes
from draftwood.errors import OptionError
from draftwood.testing.tiny import tiny_decoder
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static


def test_paths_take_the_place_of_the_tree_and_have_its_depth() -> None:
    target, inner = tiny_decoder(2), "speculative_sampling:draft=first:2"
    tree: Any = recipes.build("traversal_verification", target, inner=inner, widths=(3, 1))
    assert tree.policy == Static((3, 1)) and (tree.controller.depth, tree.controller.nodes) == (2, 6)
    paths: Any = recipes.build("traversal_verification", target, inner=inner, widths=(3, 1), paths=4)
    assert paths.policy == Paths(4) and (paths.controller.depth, paths.controller.nodes) == (2, 8)
    with pytest.raises(OptionError, match="paths cannot be -1"):
        recipes.build("traversal_verification", target, inner=inner, paths=-1)

"""Trees by widths, or paths of as many levels."""

from typing import Any

import pytest

from draftwood import recipes
from draftwood.errors import OptionError
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static

INNER = "speculative_sampling:draft=first:2"


def test_paths_take_the_place_of_the_tree() -> None:
    target = tiny_runner(2)
    tree: Any = recipes.build("traversal_verification", target, inner=INNER, widths=(3, 1))
    assert tree.policy == Static((3, 1)) and (tree.controller.depth, tree.controller.nodes) == (2, 6)
    paths: Any = recipes.build(f"traversal_verification:paths=4:inner={INNER}", target)
    assert paths.policy == Paths(4) and (paths.controller.depth, paths.controller.nodes) == (3, 12)
    short: Any = recipes.build("traversal_verification", target, inner=INNER, paths=4, depth=2)
    assert (short.controller.depth, short.controller.nodes) == (2, 8)
    plain: Any = recipes.build("traversal_verification", target, inner=INNER)
    assert plain.policy == Static((2, 1))


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"paths": -1}, "paths cannot be -1"),
        ({"paths": 2, "depth": 0}, "depth cannot be 0"),
        ({"paths": 3, "widths": (2, 2, 1, 1)}, r"paths 3 and widths \(2, 2, 1, 1\) exclude each other"),
        ({"depth": 3}, r"depth 3 is used only with paths\nhint: add paths, or leave out depth"),
        ({"depth": 3, "widths": (2, 1)}, "depth 3 is used only with paths"),
    ],
)
def test_what_would_be_ignored_is_refused(wish: dict[str, Any], said: str) -> None:
    """Given is what was given, be it the default."""
    with pytest.raises(OptionError, match=said):
        recipes.build("traversal_verification", tiny_runner(2), inner=INNER, **wish)

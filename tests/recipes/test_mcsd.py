"""A fixed tree of candidates, drawn either way."""

import pytest

from draftwood import recipes
from draftwood.core.legal_draws import Draw
from draftwood.errors import OptionError
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.trees.static import Static

INNER = "speculative_sampling:draft=first:1"


def test_the_tree_is_drawn_as_asked() -> None:
    for draw in ("distinct", "iid"):
        recipe = recipes.build("mcsd", tiny_runner(), inner=INNER, draw=draw)
        assert recipe.policy == Static((2, 1), Draw(draw))
    with pytest.raises(OptionError, match="draw cannot be 'given'"):
        recipes.build("mcsd", tiny_runner(), inner=INNER, draw="given")

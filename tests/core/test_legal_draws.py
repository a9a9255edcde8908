"""The table of exact pairings, and that no other pairing can be built."""

from dataclasses import dataclass
from typing import Any

import pytest

from draftwood.core.legal_draws import RULES, Draw, Shape, legal_rules
from draftwood.core.recipe import Recipe
from draftwood.errors import CompositionError
from draftwood.testing.contracts import Always
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, random_probs
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from draftwood.verifiers.transport import Transport

PROBS = random_probs(3, 0)


@dataclass(frozen=True)
class OnlyChains(Rejection):
    shapes: frozenset[Shape] = RULES["Block"].shapes


def check(policy: Any, verifier: Any) -> None:
    recipe = Recipe(drafter=TableDrafter(PROBS), policy=policy, verifier=verifier, controller=Always(1, 4))
    recipe.check(TableModel(3, PROBS).runner())


def test_match_is_exact_for_every_draft_so_there_is_always_an_exact_rule() -> None:
    for draw in Draw:
        for shape in Shape:
            assert (draw, shape) in RULES["Match"] and legal_rules(draw, shape)
            if draw is Draw.GIVEN:
                assert legal_rules(draw, shape) == ["Match"], "without a distribution nothing else is"


def test_shapes_follow_from_the_policy() -> None:
    assert Chain().shape is Static((1, 1)).shape is Paths(1).shape is BestFirst(1).shape is Shape.CHAIN
    assert Static((2, 1)).shape is BestFirst(2).shape is Shape.TREE and Paths(2).shape is Shape.PATHS


def test_illegal_pairing_names_the_rules_that_are_legal() -> None:
    check(Static((2,), Draw.IID), Rejection())
    with pytest.raises(CompositionError, match=r"given ones.*\n.*exact for these: Match$"):
        check(BestFirst(2), Rejection())
    check(Chain(), OnlyChains())
    with pytest.raises(CompositionError, match=r"in a tree\n.*Traversal or Rejection or Match"):
        check(Static((2, 1)), OnlyChains())
    with pytest.raises(CompositionError, match=r"independent paths\n.*PathBlock"):
        check(Paths(2), OnlyChains())
    check(Paths(2), Match())
    with pytest.raises(CompositionError, match="Transport is defined for iid draws"):
        check(Static((2,)), Transport(draws=frozenset(Draw)))  # saying so does not make it exact

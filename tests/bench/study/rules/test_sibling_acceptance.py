"""Which sibling is accepted is counted at the nodes the rule came to, and trees are made from it."""

from pathlib import Path

import pytest

from draftwood.bench.study.rules.sibling_acceptance import measure
from draftwood.core.recipe import Recipe
from draftwood.errors import OptionError
from draftwood.models.loading.load import Loaded, load
from draftwood.sizing.ranks import Counting, Ranks
from draftwood.testing.contracts import Always
from draftwood.testing.exact import leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, context_free
from draftwood.trees.static import Static

P, Q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Loaded:
    return load(str(folder), dtype="float32")


def test_of_two_draws_each_is_kept_as_often_as_theory_says() -> None:
    books: list[Counting] = []

    def recipe() -> Recipe:
        books.append(Counting(2))
        return Recipe(
            drafter=TableDrafter(context_free(Q)), policy=Static((2,)), verifier=books[-1], controller=Always(1, 2)
        )

    found = leaves(TableModel(4, context_free(P)), recipe, width=1)
    played = [book for book in books if book.tried]
    shares = [0.0, 0.0]
    for leaf, book in zip(found, played, strict=True):
        assert book.tried[0] == [1, 1]
        shares = [s + leaf.prob * k for s, k in zip(shares, book.kept[0], strict=True)]
    assert shares == pytest.approx([0.6, 107 / 140 - 0.6])


def test_acceptance_falls_and_leaves_out_what_never_was_accepted() -> None:
    counts = Ranks(tried=[[10, 10, 10, 10], [10, 10, 0, 0]], kept=[[5, 1, 2, 0], [7, 1, 0, 0]])
    assert counts.acceptance() == pytest.approx((0.6, 4 / 30, 4 / 30))
    assert counts.rate(0, 2) == 0.2 and counts.rate(1, 3) is None


def test_a_draft_of_the_target_itself_is_accepted_at_the_first_sibling(loaded: Loaded) -> None:
    same = f"speculative_sampling:draft=first:{loaded.info.num_layers}"
    for temperature in (0.0, 1.0):
        found = measure(
            loaded, same, [[1, 2, 3], [4, 5]], temperature=temperature, width=3, depth=3, nodes=9, max_tokens=12
        )
        assert found.acceptance()[0] > 0.99 and found.tried[0][1] > 3


def test_drafters_without_siblings_and_missing_prompts_are_refused(loaded: Loaded) -> None:
    with pytest.raises(OptionError, match="to draw siblings from"):
        measure(loaded, "prompt_lookup", [[1, 2]])
    with pytest.raises(OptionError, match="no prompts"):
        measure(loaded, "speculative_sampling:draft=first:1", [])


def test_lucky_siblings_are_together_accepted_no_more_often_than_always() -> None:
    counts = Ranks(tried=[[3, 1, 1]], kept=[[1, 0, 1]])
    assert counts.acceptance() == pytest.approx((1 / 3, 1 / 3, 1 / 3))


def test_options_that_only_the_recipes_own_tree_would_use_are_refused(loaded: Loaded) -> None:
    with pytest.raises(OptionError, match="'depth' would have no effect"):
        measure(loaded, "speculative_sampling:depth=2:draft=first:1", [[1, 2]])

"""A delayed tree is a chain that parts into independent paths."""

from typing import Any

import pytest

from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.errors import OptionError
from draftwood.testing.contracts import check_drafter, check_policy
from draftwood.testing.exact import distance, expected_accepted, first_token, joint_error
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import context_free, near, random_probs
from draftwood.trees.delayed import Delayed
from draftwood.trees.paths import Paths
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from small_trees import P, every_tree, grown, one_round

PROBS = random_probs(3, 7)
DRAFT = near(PROBS, 3, 8, 0.5)


def test_the_contracts_hold() -> None:
    check_policy(Delayed(1, 3))
    check_drafter(TableDrafter(random_probs(6, 3)), Delayed(1, 2), 6)
    for wrong in ({"trunk": -1}, {"count": 0}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            Delayed(**wrong)


def test_the_trunk_is_a_chain_and_paths_go_on_from_its_end() -> None:
    tree = grown(Delayed(2, 3), random_probs(9, 1), 9, Limit.of([4] * 8, [8] * 8)).tree
    depth = tree.depths()
    for b in range(8):
        for d, draws in ((1, 1), (2, 1), (3, 3), (4, 3)):
            level = tree.live[b] & (depth[b] == d)
            assert int(tree.copies[b][level].sum()) == draws
            assert d > 2 or int(level.sum()) == 1


def test_shapes_are_named_for_what_rules_may_rely_on() -> None:
    assert [Delayed(t, k).shape for t, k in ((2, 1), (0, 3), (2, 3))] == [Shape.CHAIN, Shape.PATHS, Shape.TREE]
    assert Delayed().draw is Draw.IID
    paths, none = every_tree(Paths(2), DRAFT, 3, 2, 4), every_tree(Delayed(0, 2), DRAFT, 3, 2, 4)
    assert paths.keys() == none.keys() and max(abs(paths[t] - none[t]) for t in paths) < 1e-12


@pytest.mark.parametrize("verifier", [Match(), Rejection()], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_output_is_the_targets_under_any_budget(verifier: Any, nodes: int) -> None:
    found = one_round(Delayed(1, 2), 3, nodes, PROBS, DRAFT, vocab_size=3, verifier=verifier)
    assert joint_error(found, PROBS, 3, 3) < 1e-12
    assert max(leaf.accepted for leaf in found) == {1: 1, 2: 1, 3: 2}[nodes]


@pytest.mark.long
def test_paths_of_two_behind_the_trunk_come_out_exactly() -> None:
    found = one_round(Delayed(1, 2), 3, 5, PROBS, DRAFT, vocab_size=3)
    assert joint_error(found, PROBS, 3, 4) < 1e-12 and max(leaf.accepted for leaf in found) == 3


@pytest.mark.slow
def test_width_where_the_draft_is_unsure_keeps_more() -> None:
    def unsure_later(text: tuple[int, ...]) -> list[float]:
        return [0.98, 0.01, 0.01] if len(text) == 1 else [0.34, 0.33, 0.33]

    def p(text: tuple[int, ...]) -> list[float]:
        return [0.98, 0.01, 0.01] if len(text) == 1 else [0.1, 0.1, 0.8]

    late, early = (
        expected_accepted(one_round(policy, 2, nodes, p, unsure_later, vocab_size=3))
        for policy, nodes in ((Delayed(1, 3), 4), (Delayed(0, 2), 4))
    )
    assert late > early


def test_control_cutting_merged_draws_to_a_budget_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert distance(first_token(one_round(Delayed(0, 3), 1, 1), 4), P) < 1e-12
    monkeypatch.setattr(Delayed, "draws", lambda self, levels: 0)
    assert distance(first_token(one_round(Delayed(0, 3), 1, 1), 4), P) > 0.005


def test_equal_distributions_keep_everything() -> None:
    same = context_free((0.5, 0.3, 0.2))
    assert expected_accepted(one_round(Delayed(1, 2), 2, 3, same, same, vocab_size=3)) == pytest.approx(2, abs=1e-9)

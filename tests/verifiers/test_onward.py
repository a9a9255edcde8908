"""The way on: given tokens are reached by matching, and what was drawn below them is judged anew."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.core.host_tree import HostTree
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.scored import Scored
from draftwood.core.tree import TokenTree
from draftwood.testing.contracts import Always
from draftwood.testing.exact import expected_accepted, joint_error, probs_of
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers import onward
from draftwood.verifiers.block import Block
from draftwood.verifiers.match import Match
from draftwood.verifiers.path_block import PathBlock
from draftwood.verifiers.traversal import Traversal
from look_ahead import WithGiven, outcomes, pair

RULES = [Block(), Traversal(), PathBlock()]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda v: type(v).__name__)
def test_given_nodes_beside_and_below_drawn_ones_cost_nothing_and_bring_more(rule: Any) -> None:
    p, q = pair(3, 3)

    class Whole(Chain):
        """Given nodes stand beside a chain here, and none is cut."""

        def select(self, tree: TokenTree, limit: Any) -> Any:
            return tree.live

    found = outcomes(rule, Whole(), p, WithGiven(q), 3, controller=Always(2, 12))
    assert joint_error(found, p, 3, 4) < 1e-12
    alone = outcomes(rule, Chain(), p, q, 3)
    assert expected_accepted(found) > expected_accepted(alone) + 0.5
    assert max(leaf.accepted for leaf in found) == 3, "two drawn, one given below them"


def test_control_a_given_token_judged_as_if_drawn_fails() -> None:
    p, q = pair(3, 3)

    class Best(WithGiven):
        """The draft's best token, given, and passed off as a draw."""

        def propose(self, state: Any, rnd: Any, base: Any, limit: Any, policy: Any) -> Any:
            made = super(WithGiven, self).propose(state, rnd, base, limit, policy)
            assert made.q is not None
            best = made.q.prob[made.q_indices()[:, 0]].argmax(1)
            tokens = torch.cat([made.tree.tokens[:, :1], best[:, None]], dim=1)
            return replace(made, tree=replace(made.tree, tokens=tokens))

    for rule in RULES:
        found = outcomes(rule, Chain(), p, Best(q), 3, depth=1)
        assert joint_error(found, p, 3, 1) > 0.05


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("rule", RULES, ids=lambda v: type(v).__name__)
def test_greedy_text_is_that_of_matching(rule: Any, shortcut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = pair(4, 9, 0.9)
    params = SamplingParams(temperature=0.0)
    want = outcomes(Match(), Chain(), p, q, 4, depth=3, tokens=9, params=params)
    if not shortcut:  # as beside a row that samples
        monkeypatch.setattr(Scored, "simple", property(lambda self: False))
    got = outcomes(rule, Chain(), p, q, 4, depth=3, tokens=9, params=params)
    assert probs_of(got) == probs_of(want) and len(got) == 1 and got[0].accepted == want[0].accepted


def test_nodes_of_a_path_come_in_order_and_dead_ones_are_left_out() -> None:
    tree = TokenTree.roots(torch.tensor([7, 8]))
    tree = tree.add(torch.tensor([[0, 0], [0, 0]]), torch.tensor([[1, 2], [3, 4]]), live=torch.ones(2, 2).bool())
    tree = tree.add(torch.tensor([[2], [1]]), torch.tensor([[5], [6]]), live=torch.tensor([[True], [False]]))
    verdict = onward.verdict_at(HostTree.of(tree), torch.tensor([3, 0]), torch.tensor([1, 1]))
    assert verdict.path.tolist() == [[0, 2, 3], [0, -1, -1]] and verdict.count.tolist() == [2, 0]
    assert onward.inner(tree).tolist() == [[True, False, True, False], [True, False, False, False]]


def test_siblings_in_a_tree_may_be_given_too() -> None:
    p, q = pair(3, 4)

    class Whole(Static):
        def select(self, tree: TokenTree, limit: Any) -> Any:
            return tree.live

    found = outcomes(Traversal(), Whole((2,)), p, WithGiven(q), 3, controller=Always(1, 12))
    assert joint_error(found, p, 3, 3) < 1e-12

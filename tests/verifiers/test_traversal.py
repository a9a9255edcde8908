"""Traversal: trees judged from the leaves to the root, exact, and never shorter than rejection in the cards' fixtures."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.core.limit import Limit
from draftwood.core.proposal import Draw, Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.sampling import SamplingParams
from draftwood.core.scored import Scored
from draftwood.testing.contracts import Always, check_verifier
from draftwood.testing.drafts import TableDrafter
from draftwood.testing.exact import acceptance, expected_accepted, joint_error
from draftwood.testing.runs import make_engine, serve
from draftwood.testing.tables import TableModel, context_free
from draftwood.trees.chain import Chain
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static
from draftwood.verifiers import traversal
from draftwood.verifiers.block import weight
from draftwood.verifiers.rejection import Rejection
from draftwood.verifiers.traversal import Traversal, settle
from look_ahead import Failing, Wayward, outcomes, pair

TWO = context_free((1 / 3, 2 / 3)), context_free((2 / 3, 1 / 3))
THREE = context_free((0.3, 0.4, 0.3)), context_free((0.6, 0.3, 0.1))


@pytest.mark.parametrize(("count", "kept"), [(1, 11 / 9), (2, 115 / 81), (3, 1136 / 729)])
def test_fixture_b_is_reproduced_with_merged_paths(count: int, kept: float) -> None:
    found = outcomes(Traversal(), Paths(count), *TWO, 2)
    assert expected_accepted(found) == pytest.approx(kept, abs=1e-9)
    assert joint_error(found, TWO[0], 2, 3) < 1e-12


@pytest.mark.parametrize(("widths", "kept"), [((1, 1), 1.25), ((2, 1), 1.57), ((2, 2), 1.690625)])
def test_fixture_c_is_reproduced(widths: tuple[int, ...], kept: float) -> None:
    found = outcomes(Traversal(), Static(widths), *THREE, 3)
    assert expected_accepted(found) == pytest.approx(kept, abs=1e-9)
    assert joint_error(found, THREE[0], 3, 3) < 1e-12


def test_the_cards_trace_is_followed() -> None:
    """Children of the root: a, c; of a: b, c."""
    a, b, c = (torch.tensor([[x]]) for x in range(3))
    p, q = (torch.tensor([x], dtype=torch.float64) for x in ([0.3, 0.4, 0.3], [0.6, 0.3, 0.1]))
    w = weight(torch.ones(1, dtype=torch.float64), p, q, a)
    assert w.item() == pytest.approx(0.5) and weight(w, p, q, b).item() == pytest.approx(2 / 3)
    w, p, q = settle(w, p, q, b)
    assert w.item() == pytest.approx(1 / 11)
    assert p[0].tolist() == pytest.approx([0, 0, 1]) and q[0].tolist() == pytest.approx([6 / 7, 0, 1 / 7])
    assert weight(w, p, q, c).item() == pytest.approx(7 / 11)
    w, p, q = settle(w, p, q, c)
    assert w.item() == 0 and not p.isnan().any() and not q.isnan().any(), "nobody needs a any more"


@pytest.mark.parametrize(
    ("policy", "vocab", "depth"),
    [
        (Chain(), 3, 3),
        (Chain(), 5, 2),
        (Static((2, 1)), 3, 2),
        (Static((3, 1)), 3, 2),
        (Static((2,), Draw.IID), 5, 1),
        (Static((2, 1), Draw.IID), 3, 2),
        (Paths(3), 4, 1),
    ],
    ids=str,
)
def test_random_models_come_out_exactly(policy: Any, vocab: int, depth: int) -> None:
    p, q = pair(vocab, 1)
    found = outcomes(Traversal(), policy, p, q, vocab, depth)
    assert joint_error(found, p, vocab, depth + 1) < 1e-12
    if policy.draw is Draw.DISTINCT:  # counting equal draws, as rejection does, may keep more than merging them
        assert expected_accepted(found) > expected_accepted(outcomes(Rejection(), policy, p, q, vocab, depth)) - 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("policy", [Static((2, 1, 1)), Static((1, 2, 1)), Paths(2)], ids=str)
def test_deeper_trees_come_out_exactly(policy: Any) -> None:
    p, q = pair(3, 2)
    assert joint_error(outcomes(Traversal(), policy, p, q, 3), p, 3, 4) < 1e-12


@pytest.mark.slow
def test_the_contract_of_verifiers_holds() -> None:
    check_verifier(Traversal(), models=1)


def test_equal_laws_keep_all_and_disjoint_ones_nothing() -> None:
    even, low, high = (context_free(x) for x in ((0.2, 0.3, 0.5), (0.5, 0.5, 0.0), (0.0, 0.0, 1.0)))
    assert expected_accepted(outcomes(Traversal(), Static((2, 1)), even, even, 3)) == pytest.approx(2, abs=1e-12)
    for p, q in ((low, high), (high, low)):
        found = outcomes(Traversal(), Static((2, 1)), p, q, 3)
        assert acceptance(found) == 0 and joint_error(found, p, 3, 3) < 1e-12


@pytest.mark.parametrize("policy", [Static((2, 1)), Paths(2)], ids=str)
def test_whole_requests_over_several_rounds_have_the_targets_joint_law(policy: Any) -> None:
    p, q = pair(2, 7)
    found = outcomes(Traversal(), policy, p, q, 2, tokens=3)
    assert {len(leaf.output) for leaf in found} == {3} and joint_error(found, p, 2, 3) < 1e-12


@pytest.mark.parametrize("policy", [Static((2, 1)), Static((2, 1), Draw.IID), Paths(2)], ids=str)
def test_growth_may_depend_on_other_branches(policy: Any) -> None:
    p, q = pair(3, 2)
    found = outcomes(Traversal(), policy, p, q, 3, controller=Wayward(2, 4))
    assert joint_error(found, p, 3, 3) < 1e-12


@pytest.mark.parametrize("raises", [False, True])
def test_a_drafter_that_breaks_because_of_what_it_drew_does_not_bias(raises: bool) -> None:
    p, q = pair(3, 2)
    found = outcomes(Traversal(), Static((2, 1)), p, Failing(q, raises=raises), 3, width=1, benched=True)
    assert joint_error(found, p, 3, 3) < 1e-12


def test_a_budget_between_siblings_does_not_bias() -> None:
    p, q = pair(3, 4)
    for budget in (1, 3, 5):
        found = outcomes(Traversal(), Static((2, 2)), p, q, 3, controller=Always(2, budget))
        assert joint_error(found, p, 3, 3) < 1e-12


def test_laws_are_made_only_where_a_row_has_been(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of thirty nodes by a draft that is always right: the first path's laws and no others."""
    asked: list[int] = []
    law = Scored.law

    def counted(self: Scored, nodes: torch.Tensor) -> torch.Tensor:
        asked.append(nodes.shape[1])
        return law(self, nodes)

    even = context_free((0.2, 0.3, 0.1, 0.4))
    monkeypatch.setattr(Scored, "law", counted)
    shape = Static((2, 2, 2, 2))
    recipe = Recipe(drafter=TableDrafter(even), policy=shape, verifier=Traversal(), controller=Always(4, 30))
    (request,) = serve(make_engine(TableModel(4, even), recipe), [[1]], SamplingParams(temperature=1.0, max_tokens=5))
    assert len(request.output) == 5 and sum(asked) == 5 and request.stats.draft_tokens == 30


def test_rows_with_and_without_trees_stand_side_by_side() -> None:
    """The same seeds give the same text alone and among rows that draft less or nothing."""
    p, q = pair(5, 6)

    class Uneven(Always):
        def plan(self, state: None, rnd: Any, load: Any) -> Limit:
            deep = [request.id % 3 for request in rnd.requests]
            return Limit.of(deep, [4 * d for d in deep])

    def run(prompts: list[list[int]], first: int) -> list[list[int]]:
        recipe = Recipe(drafter=TableDrafter(q), policy=Static((2, 1)), verifier=Traversal(), controller=Uneven(2, 4))
        each = [SamplingParams(temperature=1.0, seed=first + i, max_tokens=12) for i in range(len(prompts))]
        return [r.output for r in serve(make_engine(TableModel(5, p), recipe), prompts, each)]

    prompts = [[1], [2, 3], [4, 0, 1]]
    assert run(prompts, 0)[:1] == run(prompts[:1], 0), "row 0 never drafts"
    assert run(prompts, 0)[:2] == run(prompts[:2], 0)


# Planted mistakes: the shipped rule with one change.


def test_control_another_weight_of_the_parent_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(w: Any, p: Any, q: Any, token: Any) -> Any:
        _, rest, left = settle(w, p, q, token)
        total = (w[:, None] * p - q).clamp_min(0).sum(-1)
        w = torch.where(w < 1, (total / (1 - q.gather(1, token)[:, 0])).clamp_max(1), w)
        return w, rest, left

    laws = [pair(3, seed, 1.0) for seed in range(3)]
    right = [joint_error(outcomes(Traversal(), Static((1, 2)), p, q, 3), p, 3, 3) for p, q in laws[:1]]
    assert max(right) < 1e-12
    monkeypatch.setattr(traversal, "settle", other)
    wrong = [joint_error(outcomes(Traversal(), Static((1, 2)), p, q, 3), p, 3, 3) for p, q in laws]
    assert 0.1 < max(wrong) < 0.2


def test_control_siblings_tried_in_reverse_order_fail() -> None:
    p, q = pair(3, 3)

    class Reverse(TableDrafter):
        def propose(self, state: Any, rnd: Any, base: Proposal, limit: Limit, policy: Any) -> Proposal:
            made = TableDrafter.propose(self, state, rnd, base, limit, policy)
            return replace(made, tree=replace(made.tree, tokens=made.tree.tokens[:, [0, 2, 1]]))

    assert joint_error(outcomes(Traversal(), Static((2,)), p, Reverse(q), 3), p, 3, 1) > 0.005

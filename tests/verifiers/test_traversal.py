"""Traversal: the card's trace, trees that grow in odd ways, and distributions made only where a row has been."""

from typing import Any

import pytest
import torch

from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.probs import TokenProbs
from draftwood.core.scored import Scored
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.contracts import Always
from draftwood.testing.exact import joint_error
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, context_free, near, random_probs
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static
from draftwood.verifiers.block import weight
from draftwood.verifiers.path_block import PathBlock
from draftwood.verifiers.traversal import Traversal, settle
from look_ahead import Failing, Wayward, outcomes, pair


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
    assert w.item() == 0 and not p.isnan().any() and not q.isnan().any(), "nothing is left to choose"


@pytest.mark.parametrize("policy", [Static((2, 1)), Static((2, 1), Draw.IID), Paths(2)], ids=str)
def test_growth_may_depend_on_other_branches(policy: Any) -> None:
    p, q = pair(3, 2)
    found = outcomes(Traversal(), policy, p, q, 3, controller=Wayward(2, 4))
    assert joint_error(found, p, 3, 3) < 1e-12


@pytest.mark.one_in(2)
@pytest.mark.parametrize("raises", [False, True])
def test_a_drafter_that_breaks_because_of_what_it_drew_does_not_bias(raises: bool) -> None:
    p, q = pair(3, 2)
    found = outcomes(Traversal(), Static((2, 1)), p, Failing(q, raises=raises), 3, width=1, disabled=True)
    assert joint_error(found, p, 3, 3) < 1e-12


@pytest.mark.slow
def test_a_budget_between_siblings_does_not_bias() -> None:
    p, q = pair(3, 4)
    for budget in (1, 3, 5):
        found = outcomes(Traversal(), Static((2, 2)), p, q, 3, controller=Always(2, budget))
        assert joint_error(found, p, 3, 3) < 1e-12


def test_distributions_are_made_only_where_a_sequence_has_been(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of thirty nodes by a draft that is always right: the first path's distributions and no others."""
    asked: list[int] = []
    probs = Scored.probs

    def counted(self: Scored, nodes: torch.Tensor, *more: Any, **named: Any) -> TokenProbs:
        asked.append(len(nodes))
        return probs(self, nodes, *more, **named)

    even = context_free((0.2, 0.3, 0.1, 0.4))
    monkeypatch.setattr(Scored, "probs", counted)
    shape = Static((2, 2, 2, 2))
    recipe = Recipe(drafter=TableDrafter(even), policy=shape, verifier=Traversal(), controller=Always(4, 30))
    (request,) = serve(
        make_engine(CpuRunner(TableModel(4, even)), recipe),
        [[1]],
        SamplingParams(temperature=1.0, seed=0, max_tokens=5),
    )
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
        return [r.output for r in serve(make_engine(CpuRunner(TableModel(5, p)), recipe), prompts, each)]

    prompts = [[1], [2, 3], [4, 0, 1]]
    assert run(prompts, 0)[:1] == run(prompts[:1], 0), "row 0 never drafts"
    assert run(prompts, 0)[:2] == run(prompts[:2], 0)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "rule", [Traversal(), PathBlock(), PathBlock(counted=True)], ids=["Traversal", "PathBlock", "counted"]
)
def test_chains_beside_trees_under_top_p_are_judged_as_alone(rule: Any) -> None:
    """Two paths are a tree or, where they are equal, a chain; few of many tokens are left, so tokens are no columns."""
    probs = random_probs(80, 3, sharpness=4.0)
    made = Recipe(
        drafter=TableDrafter(near(probs, 80, 4, 0.3)), policy=Paths(2), verifier=rule, controller=Always(3, 6)
    )
    model, prompts = CpuRunner(TableModel(80, probs)), [[i, 2 * i] for i in range(6)]
    options = [SamplingParams(temperature=0.8, top_p=0.6, seed=i, max_tokens=12) for i in range(6)]
    together = serve(make_engine(model, made), prompts, options)
    assert [r.error or r.stats.disabled for r in together] == [None] * 6
    assert sum(sum(r.stats.accepted) for r in together) > 6
    for i, request in enumerate(together):
        (alone,) = serve(make_engine(model, made), prompts[i : i + 1], options[i : i + 1])
        assert alone.output == request.output

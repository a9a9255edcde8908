"""Several drafters in one tree: exact under every rule, given nodes beside drawn ones, and every node has its source."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from device_runs import ran
from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.drafters.combine.fuse import Fuse
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.drafters.retrieval.retrieved import Retrieved, as_given
from draftwood.drafters.stateless import Stateless
from draftwood.errors import CompositionError, OptionError
from draftwood.recipes import autoregressive
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.contracts import Always, check_drafter, toy_round
from draftwood.testing.exact import acceptance, joint_error, leaves
from draftwood.testing.parts.oracle_drafter import NoisyOracle
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, near, random_probs
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match
from every_rule import SMALL, Case, label, legal
from fused_runs import MODEL, TEXTS, WAYS, V, params


@dataclass(frozen=True)
class Given(Stateless):
    """Always the same continuations, as a retriever may find them: token 1, then 0, and token 0 beside."""

    needs: Needs = Needs()
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        found = [Retrieved([1, 0, 0], [0, 1, 0], [-0.1, -0.2, -0.3]).best(n) for n in limit.budgets]
        return as_given(base, [one if deep > 1 else NONE for one, deep in zip(found, limit.depths, strict=True)])


NONE = Retrieved([], [], [])


def fused(rule: Any, case: Case, q: Any, given: int = 3, first: Callable[[Any], Any] = TableDrafter) -> Recipe:
    return Recipe(
        drafter=Fuse((first(q), Given()), given),
        policy=case.policy,
        verifier=rule,
        controller=Always(case.depth, case.nodes),
    )


@pytest.mark.one_in(17)
@pytest.mark.parametrize(("rule", "case"), legal(SMALL, plain=True), ids=label)
def test_given_nodes_beside_the_drawn_ones_leave_every_rule_exact(rule: Any, case: Case) -> None:
    p = random_probs(case.vocab_size, 5)
    q = near(p, case.vocab_size, 105, 0.6)
    model = TableModel(case.vocab_size, p)
    found = leaves(model, lambda: fused(rule, case, q))
    assert joint_error(found, p, case.vocab_size, case.depth + 1) < 1e-12


def test_given_nodes_only_raise_what_is_accepted() -> None:
    case = next(c for c in SMALL if c.policy.draw is Draw.DISTINCT and c.depth == 2)
    rule = next(r for r, c in legal(SMALL, plain=True) if c is case and type(r).__name__ == "Rejection")
    p = random_probs(case.vocab_size, 5)
    q = near(p, case.vocab_size, 105, 0.6)
    alone = leaves(
        TableModel(case.vocab_size, p),
        lambda: Recipe(drafter=TableDrafter(q), policy=case.policy, verifier=rule, controller=Always(2, 100)),
    )
    both = leaves(TableModel(case.vocab_size, p), lambda: fused(rule, case, q))
    assert acceptance(both) > acceptance(alone) + 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Replacing(Fuse):
    """Wrong on purpose: a draw that was also found counts as found, and so frees a place for another draw."""

    def propose(self, state: list[Any], rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        found = self.drafters[0].propose(state[0], rnd, base, limit, policy)
        tree = found.tree
        lucky = (tree.tokens == 1) & (tree.parents == 0)
        return found.keep(~lucky)


def test_draws_that_are_dropped_for_what_was_found_are_seen_to_bias() -> None:
    case = next(c for c in SMALL if c.policy.draw is Draw.DISTINCT and c.depth == 2)
    rule = next(r for r, c in legal(SMALL, plain=True) if c is case and type(r).__name__ == "Rejection")
    p = random_probs(case.vocab_size, 5)
    q = near(p, case.vocab_size, 105, 0.6)
    wrong = lambda: replace(fused(rule, case, q), drafter=Replacing((TableDrafter(q), Given()), 3))  # noqa: E731
    found = leaves(TableModel(case.vocab_size, p), wrong)
    assert joint_error(found, p, case.vocab_size, case.depth + 1) > 1e-3


def build(known: Any) -> Callable[[Any], Recipe]:
    drafters = (NoisyOracle(known, V), NGram())
    return lambda _: Recipe(drafter=Fuse(drafters), policy=BestFirst(), verifier=Match(), controller=Fixed(5, 12))


@pytest.mark.parametrize(("temperature", "more"), WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("runner", [CpuRunner, CudaRunner])
@pytest.mark.slow
def test_texts_are_plain_decodings_and_a_device_is_read_once(runner: Any, temperature: float, more: Any) -> None:
    options = params(temperature, **more)
    plain = ran(CpuRunner(MODEL), autoregressive.build, TEXTS, options)
    known = {tuple(prompt): text for prompt, text in zip(TEXTS, plain.texts, strict=True)}
    found = ran(runner(MODEL), build(known), TEXTS, options)
    assert found.texts == plain.texts and found.disabled == {None}
    assert min(found.accepted) > 0, found.accepted
    if runner is CudaRunner and not more:
        assert found.read_once(), found.by_round()
    if not more and not temperature:
        assert {0, 1} <= {source for r in found.requests for source in r.sources}, "both drafters had a part"


def test_the_contract_of_drafters() -> None:
    check_drafter(Fuse((NGram(), NGram(n_min=1))), BestFirst(), 5)


def test_a_path_that_both_have_belongs_to_the_first() -> None:
    rnd = toy_round([[1, 2, 3, 1, 2]], V, temperature=0.0)
    drafter = Fuse((NGram(), NGram(n_min=1, n_max=1)))
    state, limit = drafter.init(1), Limit.of([3], [8])
    tree = drafter.propose(state, rnd, Proposal.roots(rnd.roots()), limit, BestFirst()).tree
    assert tree.source[0, tree.live[0]].tolist() == [-1, 0, 0, 0]


def test_what_cannot_be_fused_is_refused() -> None:
    with pytest.raises(CompositionError, match=r"(?s)Nothing hands over target layers.*hint"):
        Fuse((Nothing(needs=Needs(borrow=True)), NGram()))
    with pytest.raises(OptionError, match="drafters"):
        Fuse(())
    assert Fuse((TableDrafter(random_probs(3, 1)), NGram())).draws == frozenset(Draw)
    assert Fuse((NGram(), TableDrafter(random_probs(3, 1)))).draws == {Draw.GIVEN}

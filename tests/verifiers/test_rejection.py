"""Rejection inside: what a residual is, given tokens beside drawn ones, and the same rule at all nodes at once."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from both_paths import drafted, same
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.probs import TokenProbs
from draftwood.testing.contracts import Always
from draftwood.testing.exact import acceptance, joint_error, leaves
from draftwood.testing.host_reads import as_if_on_a_device
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, context_free, near, random_probs
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers import rejection, walk
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

P, Q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)


def test_the_residual_is_what_p_has_more_than_q() -> None:
    p, q = (TokenProbs(torch.tensor([x], dtype=torch.float64), 4) for x in (P, Q))
    got = p.residual(q).prob
    assert torch.allclose(got, torch.tensor([[0.75, 0.25, 0.0, 0.0]], dtype=torch.float64))


def test_equal_distributions_leave_the_distribution_itself_and_no_nan() -> None:
    p = torch.softmax(torch.randn(3, 50, generator=torch.Generator().manual_seed(0)), -1)
    assert torch.equal(TokenProbs(p, p.shape[1]).residual(TokenProbs(p, p.shape[1])).prob, p)


def run(p: Any, q: Any, drafter: Any = None, width: int = 2) -> Any:
    def recipe() -> Recipe:
        return Recipe(
            drafter=drafter or TableDrafter(context_free(q)),
            policy=Static((width,)),
            verifier=Rejection(),
            controller=Always(1, 8),
        )

    return leaves(TableModel(len(p), context_free(p)), recipe)


@dataclass(frozen=True)
class WithGiven(TableDrafter):
    """Drawn children, and beside them every other token as a given child."""

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        drawn = TableDrafter.propose(self, state, rnd, base, limit, policy)
        tokens = torch.arange(4).expand(rnd.batch, -1)
        new = ~(tokens[:, :, None] == drawn.tree.tokens[:, None, 1:]).any(-1)
        tree = drawn.tree.add(torch.zeros_like(tokens), tokens, live=new, copies=0)
        q_index = torch.nn.functional.pad(drawn.q_indices(), (0, 4), value=-1)
        return Proposal(tree, drawn.draw, drawn.q, q_index)


def test_given_children_beside_drawn_ones_are_accepted_by_membership_and_stay_exact() -> None:
    found = run(P, Q, WithGiven(context_free(Q)))
    assert joint_error(found, context_free(P), 4, 1) < 1e-12
    assert acceptance(found) > 1 - 1e-12, "every token is in the tree now: .764 by drawing alone"


# --- at all nodes at once, without a host read

VOCAB = 3
DRAFTS: list[tuple[Any, int]] = [
    (Chain(Draw.IID), 2),
    (Static((2,), Draw.IID), 1),
    (Static((3,), Draw.IID), 1),
    (Static((2,), Draw.DISTINCT), 1),
    (Static((2, 1), Draw.DISTINCT), 2),
]


def error(rule: Any, policy: Any, depth: int, seed: int = 2) -> float:
    """Of the text that a whole engine emits, where no device counts as the host."""
    p = random_probs(VOCAB, seed)
    q = near(p, VOCAB, seed + 50, 0.7)
    params = SamplingParams(temperature=1.0, seed=0)
    with as_if_on_a_device():
        found = leaves(
            TableModel(VOCAB, p),
            lambda: Recipe(drafter=TableDrafter(q), policy=policy, verifier=rule, controller=Always(depth, 4)),
            params=params,
        )
    return joint_error(found, p, VOCAB, depth + 1)


def label(x: Any) -> str:
    return type(x).__name__ + (f"-{x.draw.value}" if hasattr(x, "draw") else "") if not isinstance(x, int) else ""


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("policy", "depth"), DRAFTS, ids=label)
@pytest.mark.parametrize("rule", [Rejection(), Match()], ids=label)
def test_level_by_level_the_targets_distribution_comes_out(
    rule: Any, policy: Any, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "_AT_ONCE", 0)
    assert error(rule, policy, depth) < 1e-12


@pytest.mark.parametrize(("policy", "depth"), [*DRAFTS[:2], DRAFTS[3]], ids=label)
@pytest.mark.parametrize("rule", [Rejection(), Match()], ids=label)
def test_at_once_the_targets_distribution_comes_out(rule: Any, policy: Any, depth: int) -> None:
    assert error(rule, policy, depth) < 1e-12


def test_control_a_draw_that_is_kept_too_often_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    real = rejection.ratio
    monkeypatch.setattr(rejection, "ratio", lambda p, q: real(p, q).sqrt())
    assert error(Rejection(), *DRAFTS[0]) > 0.01


def test_control_merged_draws_in_draw_order_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    real = rejection.order
    monkeypatch.setattr(walk, "_AT_ONCE", 0)
    monkeypatch.setattr(rejection, "order", lambda *args, merges: real(*args, merges=False))
    assert error(Rejection(), *DRAFTS[2]) > 0.01


def test_merged_draws_without_a_stated_bound_cost_one_read_and_come_out_alike() -> None:
    """The number of nodes bounds the children of a node, but not the draws that were merged into them."""
    here = drafted(1, 8)
    silent = replace(here, proposal=replace(here.proposal, max_children=None))
    found, reads = silent.on_device(Rejection(), [{}])
    assert reads.total == 1 and same(found.to_host(), here.on_host(Rejection(), [{}]))
    distinct = drafted(0, 8)
    silent = replace(distinct, proposal=replace(distinct.proposal, max_children=None))
    found, reads = silent.on_device(Rejection(), [{}])
    assert reads.total == 0 and same(found.to_host(), distinct.on_host(Rejection(), [{}]))


def test_coins_of_all_turns_are_asked_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.Size] = []
    real = Round.coin

    def coin(self: Round, purpose: str, at: torch.Tensor, *more: Any) -> torch.Tensor:
        asked.append(at.shape)
        return real(self, purpose, at, *more)

    monkeypatch.setattr(Round, "coin", coin)
    here = drafted(0, 2)
    here.on_device(Rejection(), [{}])
    assert asked == [(2, here.proposal.tree.num_nodes, here.proposal.siblings)]

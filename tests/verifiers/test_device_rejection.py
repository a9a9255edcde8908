"""Rejection at all nodes at once emits what the target would, and says which coins it needs before any is tossed."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from both_paths import drafted, same
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.testing.contracts import Always
from draftwood.testing.exact import joint_error, leaves
from draftwood.testing.host_reads import as_if_on_a_device
from draftwood.testing.table_drafter import TableDrafter
from draftwood.testing.table_model import TableModel, near, random_probs
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers import device_rejection, device_walk
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

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


@pytest.mark.parametrize(("policy", "depth"), DRAFTS, ids=label)
@pytest.mark.parametrize("rule", [Rejection(), Match()], ids=label)
def test_level_by_level_the_targets_distribution_comes_out(
    rule: Any, policy: Any, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_walk, "_AT_ONCE", 0)
    assert error(rule, policy, depth) < 1e-12


@pytest.mark.parametrize(("policy", "depth"), [*DRAFTS[:2], DRAFTS[3]], ids=label)
@pytest.mark.parametrize("rule", [Rejection(), Match()], ids=label)
def test_at_once_the_targets_distribution_comes_out(rule: Any, policy: Any, depth: int) -> None:
    assert error(rule, policy, depth) < 1e-12


def test_control_a_draw_that_is_kept_too_often_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    real = device_rejection.ratio
    monkeypatch.setattr(device_rejection, "ratio", lambda p, q: real(p, q).sqrt())
    assert error(Rejection(), *DRAFTS[0]) > 0.01


def test_control_merged_draws_in_draw_order_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    real = device_rejection.order
    monkeypatch.setattr(device_walk, "_AT_ONCE", 0)
    monkeypatch.setattr(device_rejection, "order", lambda *args, merges: real(*args, merges=False))
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

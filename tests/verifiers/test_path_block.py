"""The best-ranked of several paths, judged as a block: exact while no path's end tells of another."""

from typing import Any

import pytest
import torch

from draftwood.testing.contracts import Always
from draftwood.testing.exact import acceptance, expected_accepted, joint_error
from draftwood.testing.parts.table_model import context_free
from draftwood.trees.chain import Chain
from draftwood.trees.paths import Paths
from draftwood.verifiers import path_block
from draftwood.verifiers.block import Block
from draftwood.verifiers.path_block import PathBlock, ranked, skew
from look_ahead import Failing, Wayward, outcomes, pair

TWO = context_free((1 / 3, 2 / 3)), context_free((2 / 3, 1 / 3))
BOTH, NAMES = [PathBlock(), PathBlock(counted=True)], ["blind", "counted"]


@pytest.mark.slow
def test_counting_paths_keeps_a_little_less() -> None:
    found = outcomes(PathBlock(counted=True), Paths(3), *TWO, 2)
    assert joint_error(found, TWO[0], 2, 3) < 1e-12
    assert 1136 / 729 < expected_accepted(found) < 1289 / 729 - 0.003


@pytest.mark.slow
def test_ties_are_no_trouble() -> None:
    """Two tokens with one ratio, equal distributions, and distributions that exclude each other."""
    low, high = context_free((0.5, 0.5, 0.0)), context_free((0.0, 0.0, 1.0))
    tied = context_free((0.5, 0.25, 0.25)), context_free((0.2, 0.4, 0.4))
    assert joint_error(outcomes(PathBlock(), Paths(2), *tied, 3), tied[0], 3, 3) < 1e-12
    for p, q in ((tied[0], tied[0]), (low, high), (high, low), (low, tied[1])):
        found = outcomes(PathBlock(), Paths(2), p, q, 3, depth=1)
        assert joint_error(found, p, 3, 2) < 1e-12
        if {p, q} == {low, high}:
            assert acceptance(found) == 0


def test_the_skewed_distribution_is_that_of_the_largest_of_several_draws() -> None:
    p, q = (torch.tensor([x], dtype=torch.float64) for x in ([0.3, 0.4, 0.2, 0.1], [0.1, 0.4, 0.2, 0.3]))
    rank, below = ranked(p, q)
    assert rank.tolist() == [[3, 1, 2, 0]], "ties by id"
    assert below[0].tolist() == pytest.approx([0.9, 0.3, 0.7, 0.0])
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    probs = skew(q, below, zero, one, torch.tensor([3]))
    assert probs[0].tolist() == pytest.approx([1 - 0.9**3, 0.7**3 - 0.3**3, 0.9**3 - 0.7**3, 0.3**3])
    assert skew(q, below, zero, one, torch.tensor([1]))[0].tolist() == pytest.approx(q[0].tolist())


@pytest.mark.one_in(5)
@pytest.mark.parametrize("rule", BOTH, ids=NAMES)
@pytest.mark.parametrize(("count", "vocab_size"), [(2, 2), (3, 2), pytest.param(2, 3, marks=pytest.mark.slow)])
def test_paths_that_end_by_their_own_tokens_do_not_bias(rule: Any, count: int, vocab_size: int) -> None:
    """A distribution that is none below one token: paths of one and of two tokens, side by side."""
    p, q = pair(vocab_size, 2)
    for bad in (0, 1) if vocab_size == 2 else (1,):
        found = outcomes(rule, Paths(count), p, Failing(q, bad=bad), vocab_size, disabled=True)
        assert joint_error(found, p, vocab_size, 3) < 1e-12


@pytest.mark.parametrize("rule", BOTH, ids=NAMES)
def test_a_level_that_does_not_fit_the_budget_is_no_trouble(rule: Any) -> None:
    p, q = pair(3, 2)
    found = outcomes(rule, Paths(2), p, q, 3, controller=Always(2, 3))
    assert joint_error(found, p, 3, 3) < 1e-12 and max(leaf.accepted for leaf in found) == 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("how", "vocab_size", "seed"), [("raises", 2, 2), ("grows", 3, 4)])
def test_paths_that_end_by_others_tokens_need_counting(how: str, vocab_size: int, seed: int) -> None:
    """A drafter that raises for one path ends them all, and growth may look at all: what is left tells of the others."""
    p, q = pair(vocab_size, seed)
    options: dict[str, Any] = {"q": q, "controller": Wayward(2, 4)}
    if how == "raises":
        options = {"q": Failing(q, bad=0, raises=True), "width": 1, "disabled": True}
    blind, counted = (
        joint_error(outcomes(rule, Paths(2), p, vocab_size=vocab_size, **options), p, vocab_size, 3) for rule in BOTH
    )
    assert counted < 1e-12
    assert blind > 1e-3, "so the plain rule is not for such growth"


def test_two_paths_keep_more_than_one_where_the_draft_is_far_and_less_where_it_is_close() -> None:
    def lead(p: Any, q: Any) -> float:
        two, one = outcomes(PathBlock(), Paths(2), p, q, 2), outcomes(Block(), Chain(), p, q, 2)
        return expected_accepted(two) - expected_accepted(one)

    assert lead(*TWO) == pytest.approx(131 / 81 - 11 / 9)
    assert lead(*pair(2, 34, 0.1)) < -0.5


def test_control_the_chosen_path_taken_for_a_plain_draw_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = pair(3, 1)
    monkeypatch.setattr(path_block, "skew", lambda q, *_: q)
    assert joint_error(outcomes(PathBlock(), Paths(2), p, q, 3, depth=1), p, 3, 1) > 0.01

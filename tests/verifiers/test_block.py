"""The block rule inside: its weights, its roots, and chains that end early. That it is exact stands in test_exactness."""

from typing import Any

import pytest
import torch

from draftwood.core.sampling.probs import TokenProbs
from draftwood.testing.exact import joint_error
from draftwood.testing.parts.table_model import TableModel, near, random_probs
from draftwood.trees.chain import Chain
from draftwood.verifiers import block
from draftwood.verifiers.block import Block
from look_ahead import Failing, Wayward, outcomes, pair
from token_rules import recipe_of, texts


def test_weights_of_fixture_b_are_those_of_the_card() -> None:
    p, q = (torch.tensor([x], dtype=torch.float64) for x in ([1 / 3, 2 / 3], [2 / 3, 1 / 3]))
    w = block.weight(torch.ones(1, dtype=torch.float64), p, q, torch.tensor([[0]]))
    assert w.item() == pytest.approx(0.5)
    assert block.share(TokenProbs(p, 2).minus(TokenProbs(q, 2), w).mass(), w).item() == 0, (
        "never stop after the first token"
    )
    assert block.weight(w, p, q, torch.tensor([[1]])).item() == 1, "and keep both"


def test_weights_of_a_whole_chain_are_those_of_one_step_after_another() -> None:
    noise = torch.Generator().manual_seed(2)
    top, bottom = torch.rand(2, 50, 63, generator=noise, dtype=torch.float64) ** 4
    top[3, 5], bottom[4, 7], bottom[5, 2] = 0, 0, 1e-320  # never wanted, never drawn, hardly ever drawn
    w = torch.rand(50, generator=noise, dtype=torch.float64)
    w[0], w[1] = 1, 0
    one_by_one = [w]
    for p, q in zip(top.unbind(1), bottom.unbind(1), strict=True):
        one_by_one.append(block.heaviness(one_by_one[-1], p, q))
    found = block.weights(w, top, bottom)
    torch.testing.assert_close(found, torch.stack(one_by_one, dim=1), rtol=1e-12, atol=0)
    assert (found == 1).any(1).sum() > 20, "what is cut off at one is one, to the last bit"


def test_a_root_is_always_kept() -> None:
    """With w = 1 the share is 1 to the last bit, whatever is missing; rounding must not leave a row with nothing."""
    one, total = torch.ones(1000, dtype=torch.float64), torch.rand(1000, dtype=torch.float64) * 1e-8
    assert (block.share(total, one) == 1).all() and (block.share(0 * total, one) == 1).all()
    assert (block.share(0 * total, one / 2) == 0).all()


@pytest.mark.parametrize("raises", [False, True])
def test_chains_that_break_off_because_of_what_was_drawn_do_not_bias(raises: bool) -> None:
    p, q = pair(3, 2)
    found = outcomes(Block(), Chain(), p, Failing(q, raises=raises), 3, width=1, disabled=True)
    assert joint_error(found, p, 3, 3) < 1e-12
    found = outcomes(Block(), Chain(), p, q, 3, depth=3, controller=Wayward(3, 3))
    assert joint_error(found, p, 3, 4) < 1e-12 and {leaf.accepted for leaf in found} == {0, 1, 2, 3}


@pytest.mark.parametrize("positions", [1, 4, 9])
def test_positions_judged_together_or_one_by_one_come_out_alike(
    positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    probs = random_probs(6, 1)
    made = recipe_of(Block(), Chain(), near(probs, 6, 2, 0.5), 5, 5)
    requests = [([1, 2], 30, 1.0), ([3], 20, 0.7), ([4, 4, 1], 25, 1.0)]
    together = texts(TableModel(6, probs), made, requests)
    monkeypatch.setattr(block, "_AT_LEAST", positions)
    assert texts(TableModel(6, probs), made, requests) == together


ASKED = [([1, 2], 30, 1.0), ([3], 20, 0.7), ([4, 4, 1], 25, 1.0)]


def said(top_p: float) -> list[list[int]]:
    probs = random_probs(9, 1)
    return texts(TableModel(9, probs), recipe_of(Block(), Chain(), near(probs, 9, 2, 0.5), 5, 5), ASKED, top_p)


def test_packed_and_dense_distributions_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    real = block.along_chains

    def along_chains(*given: Any) -> Any:
        made = real(*given)
        seen.append(made[0].count is not None)
        return made

    monkeypatch.setattr(block, "along_chains", along_chains)
    packed = said(top_p=0.8)
    assert set(seen) == {True}
    seen.clear()
    monkeypatch.setattr("draftwood.core.sampling.sampler.likeliest", lambda *_: None)
    monkeypatch.setattr("draftwood.core.sampling.truncation.likeliest", lambda *_: None)
    assert said(top_p=0.8) == packed and set(seen) == {False}


def test_control_a_draft_that_is_forgotten_says_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    right = said(top_p=0.8)
    monkeypatch.setattr(TokenProbs, "minus", lambda self, q, w=None: self)
    assert said(top_p=0.8) != right


def test_short_distributions_are_asked_for_by_the_thousand_and_broad_ones_are_not() -> None:
    def packed(size: int, width: int) -> TokenProbs:
        none = torch.zeros(size * width)
        return TokenProbs(none, width, none.long(), torch.full((size,), width))

    assert block.at_once(None) == block.at_once(packed(4, 2**15)) == 64
    assert block.at_once(packed(4, 2**9)) == 2**11

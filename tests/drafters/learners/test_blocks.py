"""A block net is taught the target's distributions at the places of its blocks, from the text before the anchor alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.core.forward import FINAL
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners import blocks
from draftwood.drafters.learners.blocks import BlockLearner
from draftwood.drafters.learners.plans import block_plan
from draftwood.errors import OptionError
from draftwood.testing.parts.tiny import CONFIG, tiny_runner

LENGTH, VOCAB, AHEAD = 9, CONFIG.vocab_size, 3
KEEP = torch.arange(0, VOCAB, 2)
SIZES: dict[str, Any] = {"stages": AHEAD, "layers": 2, "inner": None, "share": 1.0, "decay": 0.7}


def plan(**more: Any) -> Any:
    return block_plan(tiny_runner(), KEEP, taps=(1, 3), rate=1e-3, seed=1, muon=False, **{**SIZES, **more})


def made(share: float = 1.0) -> tuple[BlockLearner, Shown]:
    target, net = tiny_runner(), plan().net.double()
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=noise, dtype=weight.dtype))
    ids = torch.randint(VOCAB, (2, LENGTH), generator=noise)
    features = {
        tap: torch.randn(2, LENGTH, CONFIG.hidden_size, generator=noise, dtype=torch.float64) for tap in (1, 3, FINAL)
    }
    answer = torch.zeros(2, LENGTH, dtype=torch.bool)
    answer[0, 3:], answer[1, 1:7] = True, True
    rows = torch.randn(VOCAB, CONFIG.hidden_size, generator=noise, dtype=torch.float64)
    shown = Shown(
        ids, ids, answer, torch.ones_like(answer), features, target.embed,
        lambda keep: rows if keep is None else rows[keep],
    )  # fmt: skip
    return BlockLearner(net, KEEP, share=share, decay=0.7), shown


def loss_of(learner: BlockLearner, shown: Shown) -> float:
    ((_, loss, _),) = learner.losses(shown, 0.0)
    return float(loss.detach())


def by_hand(learner: BlockLearner, shown: Shown, shift: int = 0) -> float:
    """Block by block and place by place, each block alone. `shift`: of the teacher."""
    rows, total, kept = shown.rows(KEEP), 0.0, set(KEEP.tolist())
    for i in range(1, AHEAD + 1):
        each: list[float] = []
        for b in range(2):
            for a in range(1, LENGTH - i):
                if not shown.answer[b, a + 1] or not shown.answer[b, a + i] or int(shown.ids[b, a + i]) not in kept:
                    continue
                y = learner.net.read(alone(learner, shown, b, a))[i]
                p = (rows @ shown.features[FINAL][b, a + i - 1 + shift]).softmax(-1)
                each.append(-float((p * (rows @ y).log_softmax(-1)).sum().detach()))
        total += 0.7 ** (i - 1) * sum(each) / len(each)
    return total


def alone(learner: BlockLearner, shown: Shown, b: int, a: int) -> torch.Tensor:
    """One block behind one anchor, with no text behind it in sight."""
    cut = {tap: x[b : b + 1, : a + 1].clone() for tap, x in shown.features.items()}
    for x in cut.values():
        x[:, a:] = 7.0  # the root's own feature is not known yet
    ids, answer, live = (x[b : b + 1, : a + 1] for x in (shown.ids, shown.answer, shown.live))
    part = replace(shown, ids=ids, text=ids, answer=answer, live=live, features=cut)
    return learner.outputs(part, torch.tensor([a]))[0]


def test_the_loss_is_that_of_a_hand_calculation() -> None:
    learner, shown = made()
    assert abs(loss_of(learner, shown) - by_hand(learner, shown)) < 1e-6


def test_control_the_distribution_of_another_place_has_another_loss() -> None:
    learner, shown = made()
    assert abs(loss_of(learner, shown) - by_hand(learner, shown, shift=1)) > 1e-2


@pytest.mark.parametrize("together", [1, 2, 16])
def test_blocks_do_not_see_each_other_nor_the_text_behind_their_roots(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "TOGETHER", together)
    learner, shown = made()
    anchors = learner.anchors(shown)
    assert anchors.tolist() == [*range(2, LENGTH - 1), *(LENGTH + a for a in range(1, 6))]
    for y, place in zip(learner.outputs(shown, anchors), anchors.tolist(), strict=True):
        right = alone(learner, shown, place // LENGTH, place % LENGTH)
        torch.testing.assert_close(y, right, rtol=1e-9, atol=1e-9)


def test_a_share_of_the_positions_are_anchors_the_same_ones_for_the_same_step() -> None:
    learner, shown = made(share=0.5)
    some = learner.anchors(shown).tolist()
    assert some == learner.anchors(shown).tolist() and 0 < len(some) < 11
    others = {tuple(learner.anchors(replace(shown, seed=seed)).tolist()) for seed in range(8)}
    assert len(others) > 4


def test_every_weight_learns() -> None:
    learner, shown = made()
    for _, loss, _ in learner.losses(shown, 0.0):
        loss.backward()
    for name, weight in learner.net.named_parameters():
        assert weight.grad is not None and bool(weight.grad.abs().max() > 0), name


def test_a_batch_without_an_anchor_has_a_loss_of_zero() -> None:
    learner, shown = made()
    ((_, loss, _),) = learner.losses(replace(shown, answer=torch.zeros_like(shown.answer)), 0.0)
    loss.backward()
    assert float(loss.detach()) == 0


@pytest.mark.parametrize(("option", "value"), [("stages", 0), ("layers", 0), ("share", 0.0), ("decay", 1.5)])
def test_sizes_that_make_no_net_are_refused(option: str, value: float) -> None:
    with pytest.raises(OptionError, match=option):
        plan(**{option: value})

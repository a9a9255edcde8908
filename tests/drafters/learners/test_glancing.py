"""Glancing shows the beginnings of blocks that are guessed wrongly, fewer of them every step, and teaches what is left."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from draftwood.core.forward import FINAL
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.glancing import Glancing
from draftwood.drafters.learners.plans import semi_plan
from draftwood.errors import OptionError
from draftwood.testing.parts.tiny import CONFIG, tiny_runner

LENGTH, VOCAB = 13, CONFIG.vocab_size
KEEP = torch.arange(0, VOCAB, 2)
SIZES: dict[str, Any] = {"block": 2, "inner": None, "noise": 0.0, "glance": 0.4}


def plan(**more: Any) -> Any:
    return semi_plan(tiny_runner(), KEEP, rate=1e-3, seed=1, muon=False, **{**SIZES, **more})


def made(**more: Any) -> tuple[Glancing, Shown]:
    target, found = tiny_runner(), plan(**more)
    net = found.net.double()
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=noise, dtype=weight.dtype))
    ids = torch.randint(VOCAB, (2, LENGTH), generator=noise)
    feature = torch.randn(2, LENGTH, CONFIG.hidden_size, generator=noise, dtype=torch.float64)
    answer = torch.zeros(2, LENGTH, dtype=torch.bool)
    answer[0, 3:], answer[1, 1:11] = True, True
    rows = torch.randn(VOCAB, CONFIG.hidden_size, generator=noise, dtype=torch.float64)
    shown = Shown(
        ids, ids, answer, torch.ones_like(answer), {FINAL: feature}, target.embed,
        lambda keep: rows if keep is None else rows[keep],
    )  # fmt: skip
    return found.learns[0].learner, shown


def loss_of(learner: Glancing, shown: Shown, progress: float = 0.0) -> float:
    ((_, loss, _),) = learner.losses(shown, progress)
    return float(loss.detach())


def by_hand(learner: Glancing, shown: Shown, seen: Tensor, teacher_shift: int = 0) -> float:
    k, rows, f = learner.net.config.stages, shown.rows(KEEP), shown.features[FINAL]
    g, kept = learner.outputs(shown, seen).detach(), set(KEEP.tolist())
    near: list[float] = []
    soft: list[float] = []
    hard: list[float] = []
    for b in range(2):
        for t in range(LENGTH - 1 - k):
            if shown.answer[b, t + 1 + k] and int(shown.ids[b, t + 1 + k]) in kept and not seen[b, t]:
                aim, y = f[b, t + k + teacher_shift], g[b, t]
                near.append(float(F.smooth_l1_loss(y, aim)))
                p = (rows @ aim / 0.95).softmax(-1)
                soft.append(-float((p * (rows @ y / 0.95).log_softmax(-1)).sum()))
                hard.append(-float((rows @ y).log_softmax(-1)[int((rows @ aim).argmax())]))
    count = len(near)
    return (sum(near) + 0.1 * (0.9 * sum(soft) + 0.1 * sum(hard))) / count


@pytest.mark.parametrize("block", [1, 2, 3])
def test_the_loss_is_that_of_a_hand_calculation(block: int) -> None:
    learner, shown = made(block=block)
    at_end = torch.zeros(2, LENGTH, dtype=torch.bool)
    assert abs(loss_of(learner, shown, 1.0) - by_hand(learner, shown, at_end)) < 1e-6
    wrong = torch.full((2,), 8)
    seen = learner.seen(shown, wrong, 0.0)
    assert bool(seen.any()) == (block > 1)
    assert abs(by_hand(learner, shown, seen, teacher_shift=-1) - by_hand(learner, shown, seen)) > 1e-3


def test_what_is_shown_is_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, shown = made()
    monkeypatch.setattr(Glancing, "wrong", lambda self, *a: torch.full((2,), 8))
    seen = learner.seen(shown, torch.full((2,), 8), 0.0)
    assert seen.any()
    assert abs(loss_of(learner, shown) - by_hand(learner, shown, seen)) < 1e-6
    assert abs(loss_of(learner, shown) - by_hand(learner, shown, torch.zeros_like(seen))) > 1e-4


@pytest.mark.parametrize("block", [2, 3, 4])
def test_the_beginnings_of_some_blocks_are_shown_and_never_a_whole_one(block: int) -> None:
    learner, shown = made(block=block)
    wrong, sizes = torch.tensor([10, 6]), set()
    for step in range(30):
        seen = learner.seen(replace(shown, seed=step), wrong, 0.0)
        assert (seen.sum(1) <= (0.4 * wrong).long()).all()
        for row in F.pad(seen, (0, -LENGTH % block)).view(2, -1, block).flatten(0, 1).tolist():
            assert row == sorted(row, reverse=True) and not row[-1], "a part that begins with the block"
            sizes.add(sum(row))
    assert sizes == set(range(block))
    assert not learner.seen(shown, wrong, 1.0).any() and torch.equal(
        learner.seen(shown, wrong, 0.0), learner.seen(shown, wrong, 0.0)
    )


def test_a_shown_index_reads_what_it_is_to_guess() -> None:
    learner, shown = made()
    seen = torch.zeros(2, LENGTH, dtype=torch.bool)
    seen[0, 4] = True
    ids, f = shown.ids.clone(), shown.features[FINAL].clone()
    ids[0, 5], f[0, 4] = shown.ids[0, 7], shown.features[FINAL][0, 6]
    by_value = learner.outputs(replace(shown, ids=ids, features={FINAL: f}), torch.zeros_like(seen))
    torch.testing.assert_close(learner.outputs(shown, seen), by_value)
    changed = (by_value - learner.outputs(shown, torch.zeros_like(seen))).abs().amax(-1)[0] > 1e-9
    assert changed.tolist() == [t >= 4 for t in range(LENGTH)], "its own block from its index on, and later ones"


def test_wrong_guesses_are_counted_by_sequence() -> None:
    learner, shown = made()
    rows, none = shown.rows(KEEP), torch.zeros(2, LENGTH, dtype=torch.bool)
    g, f, kept, count = learner.outputs(shown, none), shown.features[FINAL], set(KEEP.tolist()), [0, 0]
    for b in range(2):
        for t in range(LENGTH - 3):
            if shown.answer[b, t + 3] and int(shown.ids[b, t + 3]) in kept:
                count[b] += int((rows @ g[b, t]).argmax() != (rows @ f[b, t + 2]).argmax())
    seen: list[Tensor] = []
    real = Glancing.wrong
    patched = pytest.MonkeyPatch()
    patched.setattr(Glancing, "wrong", lambda self, *a: seen.append(real(self, *a)) or seen[-1])
    loss_of(learner, shown)
    patched.undo()
    assert seen[0].tolist() == count and sum(count) > 0


def test_every_weight_learns_and_a_batch_without_an_answer_costs_nothing() -> None:
    learner, shown = made(noise=0.1)
    ((_, loss, _),) = learner.losses(shown, 0.0)
    loss.backward()
    for name, weight in learner.net.named_parameters():
        assert weight.grad is not None and bool(weight.grad.abs().max() > 0), name
    ((_, loss, _),) = learner.losses(replace(shown, answer=torch.zeros_like(shown.answer)), 0.0)
    assert float(loss.detach()) == 0


@pytest.mark.parametrize(("option", "value"), [("block", 0), ("noise", -0.1), ("glance", 2.0)])
def test_options_that_make_no_net_are_refused(option: str, value: float) -> None:
    with pytest.raises(OptionError, match=option):
        plan(**{option: value})

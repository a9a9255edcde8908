"""A GriffinNet is trained on what it will read when it drafts, at positions that its drafts can reach."""

from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.core.forward import FINAL, ForwardInput
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.unrolling.aligned import Aligned
from draftwood.drafters.learners.unrolling.unrolled import RollOut
from draftwood.drafters.nets.runners.runner import FloatRunner
from draftwood.errors import OptionError
from draftwood.recipes import griffin
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.train.loop.teacher import Teacher
from draftwood.train.objectives import shifted
from tiny_heads import KEEP, random_net

EVERY = torch.arange(CONFIG.vocab_size)


def made(keep: Tensor = EVERY, *, answer: slice = slice(4, None), share: float = 0.0, **more: Any) -> Any:
    """A learner of a random net, and two texts of 14 tokens as it is shown them."""
    learner = Aligned(random_net("griffin"), keep, **more)
    ids = torch.randint(CONFIG.vocab_size, (2, 14), generator=torch.Generator().manual_seed(0))
    on = torch.ones_like(ids, dtype=torch.bool)
    own = on & False
    own[:, answer] = True
    return learner, Teacher(tiny_runner()).show(ids, own, on, learner.needs.taps, 0, share)


def passes(learner: Aligned, shown: Shown) -> list[Tensor]:
    """The outputs of each pass, each of the ones before."""
    reads, outputs = [shown.features[FINAL]], list[Tensor]()
    for _ in range(learner.passes):
        outputs.append(learner.output(shown, reads))
        reads.append(learner.net.forward_feature(outputs[-1]).detach())
    return outputs


def test_pass_i_is_a_roll_out_of_i_steps() -> None:
    learner, shown = made(passes=4)
    outputs, target = passes(learner, shown), tiny_runner()
    runners = FloatRunner(learner.net, target, None)
    for t in (2, 5, 7):
        runner = runners.open(1, 64)
        runner.admit(0, [])
        u, ids, first = shown.features[FINAL][0, : t + 1], shown.ids[0, 1 : t + 2], 0
        for i, out in enumerate(outputs):
            u = forward(runner, ids, u, first)[-1:]
            torch.testing.assert_close(u, learner.net.forward_feature(out)[0, t : t + 1], rtol=1e-9, atol=1e-9)
            first, ids = t + i + 1, shown.ids[0, t + 2 + i : t + 3 + i]


def forward(runner: FloatRunner, ids: Tensor, hidden: Tensor, first: int) -> Tensor:
    rows = torch.arange(len(ids))
    x = ForwardInput(ids, torch.zeros_like(ids), rows + first, rows, rows - 1, want=rows[-1:], hidden=hidden)
    out, _ = runner.execute(x)
    runner.commit([0], [rows.tolist()], [ids.tolist()])
    return out


def test_control_a_roll_out_of_what_the_head_reads_is_another() -> None:
    learner, shown = made(passes=2)
    right = passes(learner, shown)[1]
    net = learner.net
    net.forward_feature, net.read = net.read, net.forward_feature  # type: ignore[method-assign]
    assert not torch.allclose(passes(learner, shown)[1], right, rtol=1e-3)


# --- masks, by the indices of the tokens


def masks(learner: Aligned, shown: Shown, loss_mask: Tensor) -> list[Tensor]:
    """M_i by the index t of the token that is read: the label is x_{t+2}, and pass i there began at t - i + 1. From
    M_{i+1}[t] = P_i[t] A_i[t-1] loss_mask[t], where A_i is the product so far."""
    rows, label = shown.rows(learner.keep), shifted(shown.ids, 2)
    found, product = [loss_mask], torch.ones_like(loss_mask)
    for i, out in enumerate(passes(learner, shown)[:-1]):
        logits = learner.net.read(out) @ rows.T
        best = learner.keep[logits.topk(min(learner.near, logits.shape[-1])).indices]
        here = (best == label.roll(-i, 1)[..., None]).any(-1)  # of the pass that began at t
        here = here.roll(i, 1)  # by the index that it reads
        before = product.roll(1, 1)
        product = here & before if i else here
        found.append(product & loss_mask)
    return found


def by_hand(learner: Aligned, shown: Shown, wrong: int = 0) -> list[Tensor]:
    """Every pass's loss, index by index. `wrong`: masks of a neighbouring index."""
    rows, f = shown.rows(learner.keep), shown.features[FINAL]
    loss_mask = shifted(shown.answer, 2)
    losses: list[Tensor] = []
    for i, (out, mask) in enumerate(zip(passes(learner, shown), masks(learner, shown, loss_mask), strict=True)):
        predict, regress, total, count = *out.chunk(2, dim=-1), out.new_zeros(()), 0
        for b in range(len(mask)):
            for t in range(i, mask.shape[1] - 2):
                if not mask[b, (t + wrong) % mask.shape[1]] or not loss_mask[b, t]:
                    continue
                start = t - i
                p = (rows @ f[b, t + 1]).softmax(-1)
                log_q = (rows @ predict[b, start]).log_softmax(-1)
                best = p.topk(learner.most).indices
                gap = (regress[b, start] - f[b, t + 1]).abs()
                huber = torch.where(gap < 1, 0.5 * gap**2, gap - 0.5).mean()
                total = total + learner.regress * huber - learner.soft * (p * log_q).sum()
                total = total - learner.top * (p * log_q)[best].sum()
                count += 1
        losses.append(total / max(count, 1))
    return losses


@pytest.mark.parametrize("near", [3, 25, CONFIG.vocab_size])
def test_losses_are_those_of_a_hand_calculation(near: int) -> None:
    learner, shown = made(passes=3, top=0.5, near=near, most=5, answer=slice(0, None))
    told = list(learner.losses(shown, 0.0))
    losses = [float(loss.detach()) for _, loss, _ in told]
    assert losses == pytest.approx([float(x.detach()) for x in by_hand(learner, shown)], rel=1e-9)
    counted = [float(figures[f"counted{i}"]) for i, (_, _, figures) in enumerate(told)]
    assert counted[0] == 1.0
    if near == CONFIG.vocab_size:
        assert counted == [1.0, 1.0, 1.0], "with all tokens the mask is the loss mask"
    else:
        assert 0 < counted[1] < 1.0 and counted[2] < counted[1]
        off = [float(x.detach()) for x in by_hand(learner, shown, wrong=1)]
        assert losses[1:] != pytest.approx(off[1:], rel=1e-3), "a twin: one index off"


def test_prompts_break_no_roll_out_and_count_where_they_teach() -> None:
    """Nothing is asked of a prompt's tokens, so an answer's first ones keep their passes."""
    learner, shown = made(passes=3, near=CONFIG.vocab_size)
    for share in (0.0, 1.0):
        learner, shown = made(passes=3, near=CONFIG.vocab_size, share=share)
        told = [figures for _, _, figures in learner.losses(shown, 0.0)]
        assert all(float(figures[f"counted{i}"]) == 1.0 for i, figures in enumerate(told))
        assert ("prompt_hit0" in told[0]) == (share > 0)


def test_a_token_that_the_vocabulary_lacks_ends_what_can_be_reached() -> None:
    learner, shown = made(KEEP, passes=2, near=len(KEEP), answer=slice(0, None))
    told = [figures for _, _, figures in learner.losses(shown, 0.0)]
    assert float(told[1]["counted1"]) == 1.0, "its own label is always in the vocabulary"
    three, shown = made(KEEP, passes=3, near=len(KEEP), answer=slice(0, None))
    last = [figures for _, _, figures in three.losses(shown, 0.0)][2]
    kept = (shown.ids % 2 == 0)[:, 4:]  # labels of the third pass
    own, above = kept, (shown.ids % 2 == 0)[:, 3:-1]
    assert float(last["counted2"]) == pytest.approx(float((own & above).sum() / own.sum()))


def test_gradients_stop_between_passes_and_reach_the_keys_of_all() -> None:
    """They are those of the hand calculation, where every pass has a graph of its own over reads that are constants."""
    learner, shown = made(passes=3, top=0.5, near=30, most=5, answer=slice(0, None))
    for _, loss, _ in learner.losses(shown, 0.0):
        loss.backward()
    own = [p.grad.clone() for p in learner.net.parameters()]

    def right() -> list[Tensor]:
        learner.net.zero_grad()
        torch.stack(by_hand(learner, shown)).sum().backward()
        return [p.grad.clone() for p in learner.net.parameters()]

    for one, other in zip(own, right(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    entries = RollOut.entries
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RollOut, "entries", torch.no_grad()(entries))
        assert not all(torch.allclose(a, b, rtol=1e-6) for a, b in zip(own, right(), strict=True)), "a twin"


# --- the plan


def test_stages_unroll_one_pass_more_each_and_begin_as_an_eagle_head() -> None:
    target = tiny_runner(dtype=torch.float32)
    plan = griffin.training(target, KEEP, stages=3, rate=1e-3)
    assert [(s.learner.passes, s.learner.top, s.name) for s in plan.learns] == [  # type: ignore[attr-defined]
        (1, 0.0, "1 pass"), (2, 0.5, "2 passes"), (3, 0.5, "3 passes")]  # fmt: skip
    assert [s.rate.peak for s in plan.learns] == [1e-3, pytest.approx(6e-4), pytest.approx(6e-4)]
    assert plan.net is not None and not plan.net.side_down.weight.any()  # type: ignore[union-attr,operator]
    alone = griffin.training(target, KEEP, stages=2, first=2)
    assert [s.learner.passes for s in alone.learns] == [2]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "wrong",
    [{"stages": 0}, {"stages": 33}, {"first": 3, "stages": 2}, {"near": 0}, {"top": -1.0}, {"noise": float("nan")}],
)
def test_options_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match=r"griffin: .*cannot be"):
        griffin.training(tiny_runner(dtype=torch.float32), KEEP, **wrong)

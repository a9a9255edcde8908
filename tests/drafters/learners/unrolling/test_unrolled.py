"""What is trained is what will run: an unrolled step equals a real roll-out over the same tokens."""

from typing import Any

import pytest
import torch

from draftwood.core.forward import ForwardInput
from draftwood.drafters.learners.unrolling.unrolled import Unrolled
from draftwood.drafters.nets.runners.runner import FloatRunner
from draftwood.errors import OptionError
from draftwood.recipes import eagle, eagle2, eagle3
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.train.loop.teacher import Teacher
from tiny_heads import KEEP, random_net


@pytest.mark.parametrize(("kind", "depth"), [("eagle", 1), ("eagle3", 1), ("deep_eagle", 1), ("deep_eagle", 3)])
def test_step_j_is_a_roll_out_of_j_steps(kind: str, depth: int) -> None:
    target, module = tiny_runner(), random_net(kind, depth=depth)
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]])
    on = torch.ones_like(ids, dtype=torch.bool)
    learner = Unrolled(module, KEEP, steps=4)
    shown = Teacher(target).show(ids, on, on, learner.needs.taps, 0)
    steps = list(learner.outputs(shown))
    weights = FloatRunner(module, target, KEEP)
    for t in (2, 5, 7):
        runner = weights.open(1, 64)
        runner.admit(0, [])
        fused = runner.fuse([shown.features[tap][0, : t + 1] for tap in runner.taps])
        out = forward(runner, ids[0, 1 : t + 2], fused, 0)[-1:]
        torch.testing.assert_close(out, steps[0][0, t : t + 1], rtol=1e-9, atol=1e-9)
        for j in range(1, 4):
            out = forward(runner, ids[0, t + 1 + j : t + 2 + j], out, t + j)
            torch.testing.assert_close(out, steps[j][0, t : t + 1], rtol=1e-9, atol=1e-9)


def forward(runner: FloatRunner, ids: torch.Tensor, hidden: torch.Tensor, first: int) -> torch.Tensor:
    rows = torch.arange(len(ids))
    x = ForwardInput(ids, torch.zeros_like(ids), rows + first, rows, rows - 1, want=rows[-1:], hidden=hidden)
    out, _ = runner.execute(x)
    runner.commit([0], [rows.tolist()], [ids.tolist()])
    return out


def test_the_first_step_alone_is_a_plain_forward() -> None:
    """A twin: later steps differ from it, or nothing was unrolled."""
    target, module = tiny_runner(), random_net("eagle3")
    ids = torch.randint(CONFIG.vocab_size, (2, 10), generator=torch.Generator().manual_seed(0))
    on = torch.ones_like(ids, dtype=torch.bool)
    learner = Unrolled(module, KEEP, steps=2)
    first, second = learner.outputs(Teacher(target).show(ids, on, on, learner.needs.taps, 0))
    alone = next(
        iter(Unrolled(module, KEEP, steps=1).outputs(Teacher(target).show(ids, on, on, learner.needs.taps, 0)))
    )
    torch.testing.assert_close(first, alone)
    assert not torch.allclose(first, second)


# --- what is learned


def shown_of(answer: list[int], taps: frozenset[int] = frozenset({-1})) -> Any:
    """One text 10, 11, 12, ... whose answer tokens stand at these indices."""
    target, ids = tiny_runner(), torch.arange(10, 22)[None]
    on = torch.ones_like(ids, dtype=torch.bool)
    mask = torch.zeros_like(on)
    mask[0, answer] = True
    return Teacher(target).show(ids, mask, on, taps, 0)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_loss_is_that_of_the_counted_positions(kind: str) -> None:
    """Step j at t imitates the target's row after x_{t+1+j}, where x_{t+2+j} is the target's own and can be said."""
    module = random_net(kind)
    learner = Unrolled(module, KEEP, steps=3, decay=0.5)
    shown = shown_of([4, 5, 6, 9], learner.needs.taps)
    ((_, loss, _),) = learner.losses(shown, 0.0)

    def plain(off: int) -> torch.Tensor:
        rows, total = shown.rows(KEEP), torch.zeros((), dtype=torch.float64)
        for j, a in enumerate(learner.outputs(shown)):
            at = [t - 2 - j + off for t in (4, 6) if t - 2 - j + off >= 0]  # 14 and 16 are kept, 15 and 19 are not
            p = (shown.features[-1][0, [t + 1 + j for t in at]] @ rows.T).softmax(-1)
            q = (module.read(a)[0, at] @ (module.lm_head.weight if module.own_head else rows).T).log_softmax(-1)
            total = total - 0.5**j * (p * q).sum(-1).mean()
        return total

    torch.testing.assert_close(loss, plain(0), rtol=1e-9, atol=1e-9)
    for off in (-1, 1):
        assert not torch.allclose(loss, plain(off), rtol=1e-6), "a twin: one position off"


# --- noise on the features


def fused(noise: float, seed: int) -> list[torch.Tensor]:
    """What the head fuses, by tap, for one text of the tiny target."""
    module, found = random_net("eagle3"), []
    plain = module.fuse
    module.fuse = lambda features: (found.extend(features), plain(features))[1]
    learner = Unrolled(module, KEEP, steps=2, noise=noise)
    ids = torch.arange(10, 22)[None]
    on = torch.ones_like(ids, dtype=torch.bool)
    list(learner.outputs(Teacher(tiny_runner()).show(ids, on, on, learner.needs.taps, seed)))
    return found


def test_noise_is_bounded_by_the_size_of_a_position_and_differs_from_tap_to_tap() -> None:
    plain, noisy = fused(0.0, 3), fused(0.5, 3)
    shares = [(b - a) / a.abs().mean(-1, keepdim=True) for a, b in zip(plain, noisy, strict=True)]
    assert len(shares) == 3 and all(0.45 < float(x.abs().max()) <= 0.5 for x in shares)
    assert not torch.allclose(shares[0], shares[1]), "one draw for every tap would move them together"
    assert all(abs(float(x.mean())) < 0.05 for x in shares)


def test_noise_is_that_of_its_step() -> None:
    assert all(torch.equal(a, b) for a, b in zip(fused(0.5, 3), fused(0.5, 3), strict=True))
    assert not torch.equal(fused(0.5, 3)[0], fused(0.5, 4)[0]), "a twin: another step, another noise"


@pytest.mark.parametrize("recipe", [eagle, eagle2, eagle3])
def test_noise_is_an_option_of_the_recipes(recipe: Any) -> None:
    target = tiny_runner(dtype=torch.float32)
    (stage,) = recipe.training(target, KEEP, noise=0.25).learns
    assert stage.learner.noise == 0.25
    assert recipe.training(target, KEEP).learns[0].learner.noise == 0, "none by default"
    for wrong in (-0.1, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="noise cannot be"):
            recipe.training(target, KEEP, noise=wrong)


def test_unrolling_without_end_is_refused() -> None:
    assert eagle3.training(tiny_runner(), KEEP, unroll=32).net is not None
    for training in (eagle.training, eagle3.training):
        with pytest.raises(OptionError, match="unroll cannot be 1000"):
            training(tiny_runner(), KEEP, unroll=1000)

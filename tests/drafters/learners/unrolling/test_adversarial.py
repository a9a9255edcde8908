"""A discriminator and a head are trained against each other; a head of one layer without it trains as the base head does."""

from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.core.forward import FINAL
from draftwood.core.train_plan import Shown, TrainPlan
from draftwood.drafters.learners.parallel import Parallel
from draftwood.drafters.learners.unrolling.adversarial import JUDGE, Adversarial
from draftwood.drafters.learners.unrolling.unrolled import Unrolled
from draftwood.drafters.nets.modules.discriminator import Discriminator
from draftwood.errors import OptionError
from draftwood.recipes import eagle, koala, medusa
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.train.loop.batches import Batches
from draftwood.train.loop.teacher import Teacher
from draftwood.train.loop.trainer import LoopSettings, Trainer
from draftwood.train.objectives import shifted
from tiny_heads import KEEP, random_net
from tiny_run import dialogues


def made(flavour: str, share: float = 1.0) -> tuple[Adversarial, Shown]:
    """A learner whose judge is no better than chance, over two texts."""
    torch.manual_seed(0)
    if flavour == "eagle":
        base: Any = Unrolled(random_net("deep_eagle", depth=2), KEEP, steps=2, regress=0.2)
    else:
        base = Parallel(random_net("deep_medusa", depth=2, stages=2), KEEP)
    judge = Discriminator(CONFIG.hidden_size).double()
    ids = torch.randint(CONFIG.vocab_size, (2, 14), generator=torch.Generator().manual_seed(0))
    on = torch.ones_like(ids, dtype=torch.bool)
    learner = Adversarial(base, judge, weight=0.3, share=share)
    return learner, Teacher(tiny_runner()).show(ids, on, on, learner.needs.taps, 0)


def by_hand(learner: Adversarial, shown: Shown) -> tuple[float, float]:
    """L_D and the adversarial part of L_G, index by index."""
    rows, e, judge, f = shown.rows(KEEP), shown.embed(KEEP), learner.judge, shown.features[FINAL]
    net, base = learner.base.net, learner.base
    if isinstance(base, Unrolled):
        outputs = [net.read(a) for a in base.outputs(shown)]
    else:
        outputs = [net.head(k, f) for k in range(2)]
    said: list[tuple[float, float]] = []
    for j, y in enumerate(outputs):
        for b in range(2):
            for t in range(14 - 2 - j):
                if int(shown.ids[b, t + 2 + j]) % 2:
                    continue  # not in the draft vocabulary
                p, q = ((rows @ x).softmax(-1) @ e for x in (f[b, t + 1 + j], y[b, t]))
                unit = [x / (x.square().mean() + 1e-6).sqrt() for x in (f[b, t], p, q)]
                logits = [judge.last(torch.nn.functional.silu(judge.first(torch.cat([unit[0], x])))) for x in unit[1:]]
                d = [float(x.sigmoid().detach()) for x in logits]
                said.append((d[0], d[1]))
    count = len(said)
    real, fake = torch.tensor(said, dtype=torch.float64).T
    return float(-(real.log() + (1 - fake).log()).sum() / count), float(-fake.log().sum() / count)


@pytest.mark.parametrize("flavour", ["eagle", "medusa"])
def test_losses_are_those_of_a_hand_calculation(flavour: str) -> None:
    learner, shown = made(flavour)
    (judge, of_judge, told), (head, of_head, figures) = learner.losses(shown, 0.5)
    ((same, alone, right),) = learner.base.losses(shown, 0.5)
    assert (judge, head) == (JUDGE, same) and {"judge_right"} == set(told) and set(figures) == set(right)
    first, second = by_hand(learner, shown)
    assert float(of_judge.detach()) == pytest.approx(first, rel=1e-6)
    assert float(of_head.detach()) == pytest.approx(float(alone.detach()) + 0.3 * second, rel=1e-6)
    assert abs(second - first) > 1e-3, "a twin: the two are not the same"


@pytest.mark.parametrize("flavour", ["eagle", "medusa"])
def test_each_loss_moves_its_own_group_alone(flavour: str) -> None:
    learner, shown = made(flavour)
    head, judge = (list(module.parameters()) for module in (learner.base.net, learner.judge))

    def moved(parameters: list[Any]) -> bool:
        return any(p.grad is not None and bool(p.grad.any()) for p in parameters)

    told = learner.losses(shown, 0.5)
    next(told)[1].backward()
    assert moved(judge) and not moved(head)
    learner.judge.zero_grad(set_to_none=True)
    next(told)[1].backward()
    assert moved(head) and not moved(judge)


def test_the_first_part_of_the_stage_is_the_base_heads_own() -> None:
    learner, shown = made("eagle")
    ((group, loss, figures),) = learner.losses(shown, 0.09)
    ((same, alone, right),) = learner.base.losses(shown, 0.09)
    assert group == same and torch.equal(loss, alone) and figures.keys() == right.keys()
    assert len(list(learner.losses(shown, 0.1))) == 2


def test_the_judge_sees_a_share_of_the_positions_and_the_same_ones_in_a_step() -> None:
    whole, shown = made("eagle")
    some, _ = made("eagle", share=0.5)
    sizes = [len(learner.judged(shown, list(learner.base.guesses(shown)))[0]) for learner in (whole, some, some)]
    assert 0 < sizes[1] == sizes[2] < sizes[0]


def test_gradients_of_the_head_point_away_from_being_told_apart() -> None:
    """A step down the adversarial part lets the judge take more of the drafts for the target's."""
    learner, shown = made("medusa")

    def fooled() -> Tensor:
        f, _, drafted = learner.judged(shown, list(learner.base.guesses(shown)))
        return learner.judge(f, drafted, fixed=True).mean()

    before = fooled()
    grads = torch.autograd.grad(before, list(learner.base.net.parameters()))
    with torch.no_grad():
        for p, g in zip(learner.base.net.parameters(), grads, strict=True):
            p.add_(g, alpha=0.05 / float(torch.cat([x.flatten() for x in grads]).norm()))
    assert float(fooled().detach()) > float(before.detach())


# --- one layer, no discriminator


def trained(plan: TrainPlan, folder: Any) -> dict[str, Tensor]:
    batches = Batches(dialogues(16), tokens=128, seed=0)
    settings = LoopSettings(folder, steps=8)
    Trainer({"head": plan}, Teacher(tiny_runner(dtype=torch.float32)), batches, settings, {}).run()
    assert plan.net is not None
    return plan.net.state_dict()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("flavour", "base"), [("eagle", eagle), ("medusa", medusa)])
def test_one_layer_without_a_discriminator_is_the_base_head_bit_for_bit(flavour: str, base: Any, tmp_path: Any) -> None:
    target = tiny_runner(dtype=torch.float32)
    right = trained(base.training(target, KEEP, seed=3), tmp_path / "base")

    def ours(name: str, **more: Any) -> dict[str, Tensor]:
        return trained(koala.training(target, KEEP, flavour=flavour, seed=3, **more), tmp_path / name)  # type: ignore[arg-type]

    same = ours("same", layers=1, adversarial=0.0)
    assert same.keys() == right.keys() and all(torch.equal(t, right[name]) for name, t in same.items())
    for name, more in {"judged": {"layers": 1, "adversarial": 0.5}, "deep": {"layers": 2, "adversarial": 0.0}}.items():
        other = ours(name, **more)
        equal = [torch.equal(t, right[key]) for key, t in other.items() if key in right and t.shape == right[key].shape]
        assert not all(equal) or len(equal) < len(right), "a twin"


def test_layers_behind_the_first_add_nothing_at_first() -> None:
    target = tiny_runner(dtype=torch.float32)
    one, three = (koala.training(target, KEEP, layers=k, adversarial=0.0) for k in (1, 3))
    ids = torch.randint(CONFIG.vocab_size, (1, 9), generator=torch.Generator().manual_seed(0))
    on = torch.ones_like(ids, dtype=torch.bool)
    shown = Teacher(target).show(ids, on, on, frozenset({FINAL}), 0)
    steps = [list(plan.learns[0].learner.outputs(shown)) for plan in (one, three)]  # type: ignore[attr-defined]
    for a, b in zip(*steps, strict=True):
        torch.testing.assert_close(a, b)


def test_the_judge_is_in_the_plan_with_a_rate_of_its_own_and_in_no_weights_file() -> None:
    target = tiny_runner(dtype=torch.float32)
    for flavour in ("eagle", "medusa"):
        plan = koala.training(target, KEEP, flavour=flavour)  # type: ignore[arg-type]
        (learn,) = plan.learns
        assert isinstance(plan.beside, Discriminator) and learn.learner.judge is plan.beside  # type: ignore[attr-defined]
        assert learn.rate_of(JUDGE).peak == 1e-4 and not learn.rate_of(JUDGE).muon
        assert learn.rate_of("head") is learn.rate and plan.net is not None
        assert not any(name.startswith("judge") for name in plan.net.state_dict())
        assert koala.training(target, KEEP, flavour=flavour, adversarial=0.0).beside is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"layers": 0}, "layers cannot be 0"),
        ({"adversarial": -0.1}, "adversarial cannot be -0.1"),
        ({"judged": 0.0}, "judged cannot be 0"),
        ({"stages": 3}, "stages is used only with flavour=medusa"),
        ({"flavour": "medusa", "unroll": 3}, "unroll is used only with flavour=eagle"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: Any, said: str) -> None:
    with pytest.raises(OptionError, match=f"koala: {said}"):
        koala.training(tiny_runner(dtype=torch.float32), KEEP, **wrong)


def test_shifted_labels_are_the_ones_of_the_vocabulary() -> None:
    """A guard of the hand calculation: it counts what the learner counts."""
    learner, shown = made("eagle")
    guess = next(iter(learner.base.guesses(shown)))
    even = (shifted(shown.ids, 2)[:, :-2] % 2 == 0).sum()
    assert len(guess.at.every) == int(even)

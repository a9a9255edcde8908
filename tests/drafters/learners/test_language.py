"""A small language model with exits learns at all of them; without exits it learns as it always did."""

from typing import Any

import pytest
import torch

from draftwood.core.forward import FINAL, ForwardInput
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.language import Language
from draftwood.drafters.learners.plans import language_plan
from draftwood.drafters.nets.files.store import Head
from draftwood.drafters.nets.runners.small_lm_model import language_model
from draftwood.errors import WeightsError
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.exits import Exits
from draftwood.runners.nested import NestedRunner
from draftwood.testing.parts.tiny import CONFIG, tiny_runner

LENGTH, VOCAB = 7, CONFIG.vocab_size
SIZES: dict[str, Any] = {"width": 16, "layers": 3, "heads": 2, "inner": 24, "rate": 1e-3, "seed": 1}


def made(exits: tuple[int, ...] = (1, 3), align: bool = True) -> tuple[Any, Shown]:
    target = tiny_runner()
    plan = language_plan(target, torch.arange(VOCAB), **SIZES, exits=exits)
    assert [stage.learner.align for stage in plan.learns] == [False, True]  # type: ignore[attr-defined]
    net: Any = plan.net
    net.double()
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(0.4 * torch.randn(weight.shape, generator=noise, dtype=weight.dtype))
    ids = torch.randint(VOCAB, (2, LENGTH), generator=noise)
    features = {FINAL: torch.randn(2, LENGTH, CONFIG.hidden_size, generator=noise, dtype=torch.float64)}
    answer = torch.zeros(2, LENGTH, dtype=torch.bool)
    answer[:, 3:] = True
    rows = torch.randn(VOCAB, CONFIG.hidden_size, generator=noise, dtype=torch.float64)
    shown = Shown(
        ids,
        ids,
        answer,
        torch.ones_like(answer),
        features,
        target.embed,
        lambda keep: rows if keep is None else rows[keep],
    )
    return Language(net, torch.arange(VOCAB), align), shown


def by_hand(learner: Any, shown: Shown, exits: tuple[int, ...]) -> float:
    """Position by position and exit by exit: soft cross-entropy in answers, or the next token of any text."""
    rows, states = shown.rows(None), list(learner._residuals(shown))
    mean = 0.0
    for layers in exits:
        said = (learner.net.read(states[layers - 1]) @ rows.T).log_softmax(-1)
        losses: list[float] = []
        for b in range(2):
            for t in range(LENGTH - 1):
                if learner.align and shown.answer[b, t + 1]:
                    p = (rows @ shown.features[FINAL][b, t]).softmax(-1)
                    losses.append(-float((p * said[b, t]).sum().detach()))
                if not learner.align:
                    losses.append(-float(said[b, t, shown.ids[b, t + 1]].detach()))
        mean += sum(losses) / len(losses) / len(exits)
    return mean


def loss_of(learner: Any, shown: Shown) -> tuple[float, set[str]]:
    ((_, loss, figures),) = learner.losses(shown, 0.0)
    return float(loss.detach()), set(figures)


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("exits", [(1, 3), (1, 2, 3)])
def test_the_loss_is_the_mean_over_the_exits_by_a_hand_calculation(exits: tuple[int, ...], align: bool) -> None:
    learner, shown = made(exits, align)
    loss, figures = loss_of(learner, shown)
    assert abs(loss - by_hand(learner, shown, exits)) < 1e-6
    assert figures == {f"hit{i}" for i in range(len(exits))}


@pytest.mark.parametrize("align", [True, False])
def test_without_exits_the_last_layer_learns_alone(align: bool) -> None:
    learner, shown = made((), align)
    loss, figures = loss_of(learner, shown)
    assert abs(loss - by_hand(learner, shown, (3,))) < 1e-6 and figures == {"hit0"}


def test_control_other_exits_have_another_loss() -> None:
    learner, shown = made((1, 3))
    assert abs(loss_of(learner, shown)[0] - by_hand(learner, shown, (2, 3))) > 1e-3


def test_every_weight_learns_from_the_exits_behind_it() -> None:
    learner, shown = made((1, 3))
    ((_, loss, _),) = learner.losses(shown, 0.0)
    loss.backward()
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in learner.net.parameters())


def test_what_is_taught_at_an_exit_is_what_a_token_that_leaves_there_says() -> None:
    learner, shown = made((1, 2, 3))
    target, config = tiny_runner(), learner.net.config
    head = Head(config, {name: t.detach() for name, t in learner.net.state_dict().items()}, None, "")
    model: Any = CpuRunner(language_model(head, target))
    ids = shown.ids[0].tolist()
    rows = target.head(torch.eye(CONFIG.hidden_size, dtype=torch.float64), norm=False).T
    for exit in range(3):
        only = Exits((1, 2, 3), tuple(0.0 if i >= exit else 1.0 for i in range(3)))
        runner = NestedRunner(model, only).open(1, 32)
        runner.admit(0, [])
        said = []
        for i, token in enumerate(ids):
            one, at = torch.tensor([token]), torch.tensor([i])
            x = ForwardInput(one, at * 0, at, at * 0, at * 0 - 1, at * 0)
            said.append(runner.execute(x).logits[0])
            runner.commit([0], [[0]], [[token]])
        want = learner.net.read(learner.exits(shown)[exit])[0] @ rows.T
        torch.testing.assert_close(torch.stack(said), want.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("exits", [(1, 2), (2, 1, 3), (0, 3), (1, 4), (1, 1, 3)])
def test_exits_that_are_not_in_the_model_are_refused(exits: tuple[int, ...]) -> None:
    with pytest.raises(WeightsError, match=r"exits cannot be .*\nhint: ascending from 1 on, the last one 3"):
        language_plan(tiny_runner(), torch.arange(VOCAB), **SIZES, exits=exits)

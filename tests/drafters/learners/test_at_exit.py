"""A net behind an early exit is taught the target's distribution at its own index, and drafts as it was taught."""

from dataclasses import replace

import torch

from draftwood.core.forward import FINAL, ForwardInput, HostInput
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.at_exit import AtExit, AtExits
from draftwood.drafters.learners.plans import exit_plan, exits_plan
from draftwood.drafters.nets.runners.runner import FloatRunner
from draftwood.testing.parts.tiny import CONFIG, tiny_runner

LENGTH, VOCAB = 7, CONFIG.vocab_size


def made(kind: str = "exit") -> tuple[AtExit, Shown]:
    target = tiny_runner()
    plan = exit_plan(kind, target, torch.arange(VOCAB), layers=2, rate=1e-3, seed=1, share=1.0, muon=False)
    net = plan.net
    assert net is not None
    net.double()
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(0.2 * torch.randn(weight.shape, generator=noise, dtype=weight.dtype))
    ids = torch.randint(VOCAB, (2, LENGTH), generator=noise)
    features = {
        tap: torch.randn(2, LENGTH, CONFIG.hidden_size, generator=noise, dtype=torch.float64) for tap in (2, FINAL)
    }
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
    return AtExit(net, torch.arange(VOCAB)), shown


def loss_of(learner: AtExit, shown: Shown) -> float:
    ((_, loss, _),) = learner.losses(shown, 0.0)
    return float(loss.detach())


def by_hand(learner: AtExit, shown: Shown, teacher_shift: int = 0) -> float:
    """Soft cross-entropy where the next token belongs to an answer, position by position."""
    rows, y = shown.rows(None), learner.net.read(learner.outputs(shown))
    total, count = 0.0, 0
    for b in range(2):
        for t in range(LENGTH - 1):
            if shown.answer[b, t + 1]:
                p = (rows @ shown.features[FINAL][b, t + teacher_shift]).softmax(-1)
                total -= float((p * (rows @ y[b, t]).log_softmax(-1)).sum().detach())
                count += 1
    return total / count


def test_the_loss_is_that_of_a_hand_calculation() -> None:
    learner, shown = made()
    assert abs(loss_of(learner, shown) - by_hand(learner, shown)) < 1e-6


def test_control_the_distribution_of_another_index_has_another_loss() -> None:
    learner, shown = made()
    assert abs(loss_of(learner, shown) - by_hand(learner, shown, teacher_shift=1)) > 1e-2


def test_training_and_drafting_see_the_same_outputs() -> None:
    for kind in ("exit", "exit_layer"):
        learner, shown = made(kind)
        runner = FloatRunner(learner.net, tiny_runner(), None).open(1, 32)
        at = list(range(LENGTH))
        x = ForwardInput.of(
            HostInput(shown.ids[0].tolist(), [0] * LENGTH, at, [i - 1 for i in at]), at, [], torch.device("cpu")
        ).starting_from(shown.features[2][0])
        runner.admit(0, [])
        runner.reserve([0], [LENGTH])
        found, _ = runner.execute(x)
        assert (found - learner.outputs(shown)[0]).abs().max() < 1e-9


def test_an_untrained_net_is_the_exit_itself() -> None:
    plan = exit_plan("exit", tiny_runner(), torch.arange(VOCAB), layers=2, rate=1e-3, seed=1, share=1.0, muon=False)
    shown = made()[1]
    hidden = shown.features[2].float()
    learner = AtExit(plan.net, torch.arange(VOCAB))
    features = {2: hidden, FINAL: hidden}
    same = Shown(shown.ids, shown.text, shown.answer, shown.live, features, shown.embed, shown.rows)
    assert torch.equal(learner.outputs(same), hidden)


def two_exits() -> tuple[AtExits, Shown]:
    """Nets behind layers 1 and 3, over the same batch."""
    places = {"draft_layers": 1, "review_layers": 3}
    plan = exits_plan(tiny_runner(), torch.arange(VOCAB), **places, rate=1e-3, seed=1, share=1.0, muon=False)
    net = plan.net
    assert net is not None
    net.double()
    noise = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(0.2 * torch.randn(weight.shape, generator=noise, dtype=weight.dtype))
    shown = made()[1]
    features = {tap: 0.5 * (tap + 1) * shown.features[2] for tap in (1, 3)} | {FINAL: shown.features[FINAL]}
    return AtExits(net, torch.arange(VOCAB)), replace(shown, features=features)


def test_nets_behind_two_exits_have_the_losses_that_each_would_have_alone() -> None:
    learner, shown = two_exits()
    assert learner.needs.taps == {1, 3, FINAL} and set(learner.groups()) == {"draft", "review"}
    found = {group: (float(loss.detach()), figures) for group, loss, figures in learner.losses(shown, 0.0)}
    for number, (name, net) in enumerate(learner.net.named_children()):
        loss, figures = found[name]
        assert abs(loss - by_hand(AtExit(net, learner.keep), shown)) < 1e-6 and set(figures) == {f"hit{number}"}
    assert abs(found["draft"][0] - found["review"][0]) > 1e-2


def test_the_loss_of_one_exit_moves_its_own_net_alone() -> None:
    learner, shown = two_exits()
    every = {name: list(net.parameters()) for name, net in learner.net.named_children()}
    for name, loss, _ in learner.losses(shown, 0.0):
        loss.backward()
        assert all(p.grad is not None for p in every.pop(name))
        assert all(p.grad is None for rest in every.values() for p in rest)
    assert {id(p) for ps in learner.groups().values() for p in ps} == {id(p) for p in learner.net.parameters()}


def test_untrained_nets_are_the_exits_themselves() -> None:
    places = {"draft_layers": None, "review_layers": None}
    plan = exits_plan(tiny_runner(), torch.arange(VOCAB), **places, rate=1e-3, seed=1, share=1.0, muon=False)
    assert plan.config.taps == (1, 2) and plan.net is not None
    _, shown = made()
    for tap, net in zip(plan.config.taps, plan.net.children(), strict=True):
        features = {tap: shown.features[2].float(), FINAL: shown.features[2].float()}
        assert torch.equal(AtExit(net, torch.arange(VOCAB)).outputs(replace(shown, features=features)), features[tap])

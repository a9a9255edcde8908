"""Probes are taught what the target says at later positions, through its own layers, and draft as they were taught."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.core.forward import FINAL
from draftwood.core.proposal import Inputs, Proposal
from draftwood.core.protocols import Runner
from draftwood.core.score import KnownTokens, score
from draftwood.core.train_plan import Shown
from draftwood.core.tree import PROBE, TokenTree
from draftwood.drafters.learners.at_probes import AtProbes
from draftwood.drafters.learners.plans import probes_plan
from draftwood.errors import CompositionError, OptionError
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.contracts import toy_round
from draftwood.testing.parts.table_model import TableModel, context_free
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.train.loop.teacher import Teacher
from own_layers import int8

VOCAB, STAGES = CONFIG.vocab_size, 3
SIZES = 11, 7
QWEN = replace(CONFIG, qk_norm=True, sliding_window=4, family="qwen3")


def made(target: Runner, share: float = 1.0, vectors: bool = True) -> tuple[AtProbes, Shown]:
    """Random probes on two texts of different length, whose later tokens are answers."""
    options = {"probes": STAGES, "inner": None, "rate": 1e-3, "seed": 1, "share": share}
    plan = probes_plan(target, torch.arange(VOCAB), vectors=vectors, **options)
    learner = plan.learns[0].learner
    assert isinstance(learner, AtProbes)
    learner.net.to(target.info.dtype)
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in learner.net.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=noise, dtype=weight.dtype))
    ids = torch.randint(VOCAB, (2, max(SIZES)), generator=noise)
    live = torch.arange(max(SIZES)) < torch.tensor(SIZES)[:, None]
    answer = live & (torch.arange(max(SIZES)) >= 3)
    return learner, Teacher(target).show(ids, answer, live, learner.needs.taps, 5)


def behind(learner: AtProbes, shown: Shown, target: Runner, b: int, t: int) -> Tensor:
    """Features of the branch behind token t of text b, by an ordinary pass over that text and the branch."""
    text, stages = shown.ids[b, : t + 1].tolist(), learner.net.config.stages
    rnd = toy_round([text], VOCAB)
    tree = TokenTree.roots(rnd.roots())
    for i in range(stages):
        tree = tree.add(torch.tensor([[i]]), torch.tensor([[0]]), live=tree.live[:, :1], copies=0, role=PROBE)
    inputs = Inputs(learner.net.vectors.detach(), torch.tensor([[-1, *range(stages)]]))
    runner = target.open(1, 64)
    runner.admit(0, text)
    runner.reserve([0], [len(text) + stages])
    with torch.inference_mode():
        found = score(runner, [KnownTokens(0, 0, text)], Proposal(tree, inputs=inputs), rnd, taps=frozenset({FINAL}))
    return found.feature(FINAL, torch.arange(1, 1 + stages)[None])[0].clone()


def branch_places() -> list[int]:
    return [b * max(SIZES) + t for b, size in enumerate(SIZES) for t in range(2, size - 1)]


@pytest.mark.parametrize("config", [CONFIG, QWEN], ids=["llama", "norms and a window"])
def test_training_and_drafting_see_the_same_features(config: ModelConfig) -> None:
    target = tiny_runner(config=config)
    learner, shown = made(target)
    places = branch_places()
    found = learner.behind(shown, torch.tensor(places)).detach()
    for each, place in zip(found, places, strict=True):
        assert (each - behind(learner, shown, target, *divmod(place, max(SIZES)))).abs().max() < 1e-9


def test_beside_an_int8_target_they_differ_by_its_rounding() -> None:
    target = int8()
    learner, shown = made(target)
    places = branch_places()
    found = learner.behind(shown, torch.tensor(places)).detach()
    right = torch.stack([behind(learner, shown, target, *divmod(place, max(SIZES))) for place in places])
    assert ((found - right).norm() / right.norm()) < 0.05


def by_hand(learner: AtProbes, shown: Shown, target: Runner, shift: int = 0) -> float:
    """Position by position. `shift`: of the distribution that is taught."""
    total, net, rows = 0.0, learner.net, shown.rows(None)
    for i in range(STAGES):
        losses: list[float] = []
        for b in range(2):
            for t in range(max(SIZES) - 2 - i):
                if not shown.answer[b, t + 2 + i] or not shown.answer[b, t + 2]:
                    continue
                f, g = shown.features[FINAL][b], behind(learner, shown, target, b, t)
                e = target.embed(shown.ids[b, t + 1])
                e = e / (e.square().mean() + CONFIG.rms_eps).sqrt()
                x = torch.cat([g[i], f[t], e])
                y = g[i] + net.up[i] @ torch.nn.functional.silu(net.down[i] @ x + net.bias[i])
                p = (rows @ f[t + 1 + i + shift]).softmax(-1)
                losses.append(-float((p * (rows @ y).log_softmax(-1)).sum().detach()))
        total += learner.decay**i * sum(losses) / len(losses)
    return total


def test_the_loss_is_that_of_a_hand_calculation_and_another_index_has_another_one() -> None:
    target = tiny_runner()
    learner, shown = made(target)
    ((group, loss, figures),) = learner.losses(shown, 0.0)
    assert group == "probes" and set(figures) == {"hit0", "hit1", "hit2"}
    assert abs(float(loss.detach()) - by_hand(learner, shown, target)) < 1e-6
    assert abs(float(loss.detach()) - by_hand(learner, shown, target, shift=-1)) > 1e-2


def test_the_gradient_of_the_vectors_goes_through_the_layers() -> None:
    """Against differences of the loss."""
    learner, shown = made(tiny_runner())
    (loss,) = (found for _, found, _ in learner.losses(shown, 0.0))
    loss.backward()
    slope = learner.net.vectors.grad
    assert slope is not None
    for place in ((0, 3), (2, 17)):
        with torch.no_grad():
            either: list[float] = []
            for step in (1e-5, -1e-5):
                learner.net.vectors[place] += step
                ((_, found, _),) = learner.losses(shown, 0.0)
                either.append(float(found))
                learner.net.vectors[place] -= step
        assert abs((either[0] - either[1]) / 2e-5 - float(slope[place])) < 1e-5


def test_without_vectors_the_adapter_alone_learns_and_nothing_is_kept_of_the_layers() -> None:
    learner, shown = made(tiny_runner(), vectors=False)
    assert {tuple(p.shape) for p in learner.groups()["probes"]} == {
        tuple(p.shape) for name, p in learner.net.named_parameters() if name != "vectors"
    }
    assert not learner.behind(shown, torch.tensor([4])).requires_grad
    ((_, loss, _),) = learner.losses(shown, 0.0)
    loss.backward()
    assert learner.net.vectors.grad is None and learner.net.up.grad is not None and learner.net.up.grad.abs().max() > 0


def test_the_target_stays_as_it_is() -> None:
    target = tiny_runner()
    before = {name: x.clone() for name, x in target.model.state_dict().items()}  # type: ignore[attr-defined]
    learner, shown = made(target)
    ((_, loss, _),) = learner.losses(shown, 0.0)
    loss.backward()
    after = target.model.state_dict()  # type: ignore[attr-defined]
    assert all(torch.equal(x, before[name]) for name, x in after.items())
    assert all(p.grad is None for p in target.model.parameters())  # type: ignore[attr-defined]


def test_a_step_without_a_branch_has_no_loss() -> None:
    learner, shown = made(tiny_runner(), share=1e-9)
    ((_, loss, _),) = learner.losses(shown, 0.0)
    loss.backward()
    assert float(loss.detach()) == 0.0


def test_untrained_probes_are_the_mean_embedding_and_say_what_the_target_says_there() -> None:
    target = tiny_runner()
    plan = probes_plan(target, torch.arange(9), probes=2, inner=5, vectors=True, rate=1e-3, seed=1, share=1.0)
    net = plan.learns[0].learner.net  # type: ignore[attr-defined]
    mean = target.embed(torch.arange(9)).mean(0)
    assert torch.allclose(net.vectors.double(), mean.expand(2, -1), atol=1e-6) and net.down.shape == (2, 5, 96)
    g = torch.randn(4, 2, 32)
    assert torch.equal(net.read(g, torch.randn(4, 32), torch.randn(4, 32)), g)


@pytest.mark.parametrize("wrong", [{"probes": 0}, {"inner": 0}, {"share": 0.0}, {"share": 1.5}])
def test_options_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    given = {"probes": 2, "inner": None, "vectors": True, "rate": 1e-3, "seed": 1, "share": 1.0, **wrong}
    with pytest.raises(OptionError, match=next(iter(wrong))):
        probes_plan(tiny_runner(), torch.arange(9), **given)  # type: ignore[arg-type]


def test_a_target_without_layers_of_ours_is_refused() -> None:
    table = CpuRunner(TableModel(9, context_free([1 / 9] * 9)))
    with pytest.raises(CompositionError, match="hint: load the target without hf:"):
        probes_plan(table, torch.arange(9), probes=2, inner=None, vectors=True, rate=1e-3, seed=1, share=1.0)

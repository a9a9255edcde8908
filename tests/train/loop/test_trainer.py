"""The loop: every net learns, a broken run ends where an unbroken one does, and what is no number is never saved."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.core.train_plan import Learn, TrainPlan
from draftwood.drafters.learners.plans import feature_plan, language_plan, parallel_plan
from draftwood.errors import OptionError, TrainError
from draftwood.recipes import ada_eagle, dynamic_mcsd, eagle, eagle3, griffin, hispec, koala, sdsat, specdec_pp
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.train.loop import checkpoint
from draftwood.train.loop.batches import Batches
from draftwood.train.loop.teacher import Teacher
from draftwood.train.loop.trainer import LoopSettings, Report, Trainer, noise_seed
from tiny_run import dialogues

KEEP = torch.arange(0, 61, 2)
KINDS = (
    "eagle",
    "eagle3",
    "eagle3 with rows by muon",
    "medusa",
    "hydra",
    "mlp",
    "language",
    "griffin, 1 stage",
    "koala, no judge",
    "exits",
    "probes",
)


def target() -> Any:
    return tiny_runner(dtype=torch.float32)


def plan(kind: str) -> TrainPlan:
    model = target()
    if kind == "eagle":
        return eagle.training(model, KEEP, rate=5e-3)
    if kind.startswith("eagle3"):
        return eagle3.training(model, KEEP, rate=5e-3, own_lm_head="rows" in kind, muon="muon" in kind)
    if kind == "exits":
        return hispec.training(model, KEEP, rate=2e-2)
    if kind.startswith("griffin"):
        stages = 1 if "1 stage" in kind else 2
        return griffin.training(model, KEEP, rate=5e-3, stages=stages, near=20, soft=1.0, regress=0.2)
    if kind.startswith("koala"):
        return koala.training(model, KEEP, adversarial=0.0 if "no judge" in kind else 0.1)
    if kind == "decision":
        return dynamic_mcsd.training(model, KEEP, inner="speculative_sampling:draft=first:2", share=0.9, rate=1e-2)
    if kind == "probes":
        return sdsat.training(model, KEEP, probes=2, share=0.6, rate=1e-2)
    if kind in ("length", "acceptance"):
        made = ada_eagle if kind == "length" else specdec_pp
        return made.training(model, KEEP, inner="speculative_sampling:draft=first:2", share=0.9, rate=1e-2)
    if kind == "language":
        return language_plan(model, KEEP, width=32, layers=2, heads=2, inner=48, rate=5e-3, seed=0)
    more = {"inner": 48, "tied": True, "scale_input": True} if kind == "mlp" else {}
    return parallel_plan(kind, model, KEEP, stages=3, rate=5e-3, seed=0, share=0.9, **more)


def run_of(folder: Path, plans: dict[str, TrainPlan], *, steps: int | None = 12, **more: Any) -> Trainer:
    batches = Batches(dialogues(16), tokens=128, seed=0)
    return Trainer(plans, Teacher(target()), batches, LoopSettings(folder, steps=steps, **more), {"data": "x"})


def weights(plans: dict[str, TrainPlan]) -> dict[str, Tensor]:
    found = {f"{n}/{k}": t for n, p in plans.items() if p.net is not None for k, t in p.net.state_dict().items()}
    return {name: t.clone() for name, t in found.items()}


# Nets with a cache are the dear ones; breaks and kills below train them too.
DEAR = ("eagle", "eagle3", "eagle3 with rows by muon", "griffin, 1 stage", "koala, no judge")


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow if k in DEAR else ()) for k in KINDS])
def test_every_net_learns_something(tmp_path: Path, kind: str) -> None:
    losses: list[float] = []
    run_of(tmp_path, {kind: plan(kind)}, steps=60).run(lambda r: losses.append(r.losses[kind]))
    assert len(losses) == 60
    first, last = sum(losses[12:20]), sum(losses[-8:])  # the language model's second stage has another loss
    assert last < {"medusa": 0.97, "exits": 0.95}.get(kind, 0.9) * first, (first, last)


def test_language_model_may_leave_out_its_first_stage() -> None:
    sizes: dict[str, Any] = {"width": 32, "layers": 1, "heads": 2, "inner": 48}
    for pretrain, shares in ((0.2, [0.2, 0.8]), (0.5, [0.5, 0.5]), (0.0, [1.0])):
        made = language_plan(target(), KEEP, **sizes, rate=1e-3, seed=0, pretrain=pretrain)
        assert [stage.share for stage in made.learns] == shares and made.learns[-1].name == "align"
    with pytest.raises(OptionError, match="pretrain cannot be 1"):
        language_plan(target(), KEEP, **sizes, rate=1e-3, seed=0, pretrain=1.0)


SMALL = ("decision", "length", "acceptance")  # nets that decide how long a draft is


@pytest.mark.parametrize(
    "kind",
    ["eagle", "eagle3", "medusa", "hydra", "mlp", "language", "exits", "probes", "griffin", "koala", *SMALL],
)
def test_batch_without_one_counted_position_is_no_loss(kind: str) -> None:
    made, ids = plan(kind), torch.full((2, 12), 3)
    for stage in made.learns:
        on = torch.ones_like(ids, dtype=torch.bool)
        shown = Teacher(target()).show(ids, on & False, on, stage.learner.needs.taps, 0)
        for _, loss, figures in stage.learner.losses(shown, 0.0):
            loss.backward()
            assert float(loss.detach()) == 0 and not any(float(x) for x in figures.values())
    assert made.net is not None
    assert not any(p.grad is not None and bool(p.grad.any() | p.grad.isnan().any()) for p in made.net.parameters())


@pytest.mark.parametrize(
    ("breaks", "share"),
    [((2, 3), 0.5), *(pytest.param(breaks, 0.0, marks=pytest.mark.slow) for breaks in ((1, 2, 9), (5, 11)))],
)
def test_broken_run_ends_where_an_unbroken_one_does(tmp_path: Path, breaks: tuple[int, ...], share: float) -> None:
    """Several plans at once; the language model changes its stage at step 2 of 12. Prompts teach in one case."""
    kind = "eagle3 with rows by muon" if share else "eagle3"
    make = lambda: {name: plan(name) for name in (kind, "language", "exits", "probes", *SMALL)}  # noqa: E731
    whole = make()
    told: list[Report] = []
    assert run_of(tmp_path / "whole", whole, prompt_share=share).run(told.append)
    assert any("prompt_hit0" in figures for r in told for figures in r.figures.values()) == (share > 0)
    heard: dict[int, Report] = {}
    for stop in (*breaks, None):
        until, parts = threading.Event(), make()

        def watch(report: Report, stop: int | None = stop, until: threading.Event = until) -> None:
            heard[report.step] = report
            if stop is not None and report.step + 2 >= stop:
                until.set()

        done = run_of(tmp_path / "parts", parts, prompt_share=share).run(watch, until=until)
        assert done == (stop is None)
    assert [heard[r.step].losses for r in told] == [r.losses for r in told]
    assert [heard[r.step].seen for r in told] == [r.seen for r in told]
    mine, right = weights(parts), weights(whole)
    assert all(torch.equal(mine[name], t) for name, t in right.items())


def test_kill_after_a_checkpoint_changes_nothing(tmp_path: Path) -> None:
    whole = {"eagle": plan("eagle")}
    run_of(tmp_path / "whole", whole).run()

    def die(report: Report) -> None:
        if report.step == 7:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        run_of(tmp_path / "parts", {"eagle": plan("eagle")}, save_every=1e-9).run(die)
    note = checkpoint.read(tmp_path / "parts")
    assert note is not None and 0 < note[1]["step"] <= 8
    again = {"eagle": plan("eagle")}
    assert run_of(tmp_path / "parts", again).run()
    assert all(torch.equal(weights(again)[name], t) for name, t in weights(whole).items())
    forgetful = {"eagle": plan("eagle")}
    tensors, about = note
    bare = {name: t for name, t in tensors.items() if name.startswith("weights/")}
    checkpoint.write(tmp_path / "bare", bare, about)
    run_of(tmp_path / "bare", forgetful).run()
    assert not all(torch.equal(weights(forgetful)[name], t) for name, t in weights(whole).items()), "moments matter"


@pytest.mark.parametrize("kind", ["griffin", "koala"])
@pytest.mark.parametrize("killed", [1, 7])
def test_kill_in_any_stage_gives_the_same_bytes(tmp_path: Path, kind: str, killed: int) -> None:
    """A second stage with more passes; a discriminator beside the net, which has moments from the second step on."""
    whole, again = {kind: plan(kind)}, {kind: plan(kind)}
    run_of(tmp_path / "whole", whole).run()

    def die(report: Report) -> None:
        if report.step == killed:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        run_of(tmp_path / "parts", {kind: plan(kind)}, save_every=1e-9).run(die)
    assert run_of(tmp_path / "parts", again).run()
    assert all(torch.equal(weights(again)[name], t) for name, t in weights(whole).items())
    one, other = (checkpoint.read(tmp_path / name) for name in ("whole", "parts"))
    assert one is not None and other is not None and one[0].keys() == other[0].keys()
    assert all(torch.equal(t, other[0][name]) for name, t in one[0].items())
    beside = [name for name in one[0] if "/beside/" in name]
    assert len(beside) == (4 if kind == "koala" else 0)
    if kind == "koala":  # a twin: a run that forgets its discriminator ends elsewhere
        tensors, note = checkpoint.read(tmp_path / "parts") or ({}, {})
        note["step"] = 7
        spoiled = {name: t * 0 if "/beside/" in name else t for name, t in tensors.items()}
        checkpoint.write(tmp_path / "bare", spoiled, note)
        checkpoint.write(tmp_path / "same", tensors, note)
        found = []
        for folder in ("bare", "same"):
            run_of(tmp_path / folder, again := {kind: plan(kind)}).run()
            found.append(weights(again))
        assert not all(torch.equal(found[0][name], t) for name, t in found[1].items())


def test_ended_run_is_not_trained_again(tmp_path: Path) -> None:
    run_of(tmp_path, {"medusa": plan("medusa")}, steps=3).run()
    before, looks, steps = (tmp_path / checkpoint.FILE).read_bytes(), [], []
    assert run_of(tmp_path, {"medusa": plan("medusa")}, steps=3).run(steps.append, looks.append)
    assert not steps and looks == [3] and (tmp_path / checkpoint.FILE).read_bytes() == before


def test_minutes_are_counted_once_and_kept(tmp_path: Path) -> None:
    until = threading.Event()
    first = run_of(tmp_path, {"medusa": plan("medusa")}, steps=None, minutes=0.05)
    told: list[Report] = []
    first.run(lambda r: (told.append(r), until.set())[0], until=until)
    assert first.step < first.steps and told[0].seconds > 0
    again = run_of(tmp_path, {"medusa": plan("medusa")}, steps=None, minutes=7.0)
    assert again.resume() == first.step and again.steps == first.steps
    stored = checkpoint.read(tmp_path)
    assert stored is not None and stored[1]["steps"] == first.steps
    with pytest.raises(TrainError, match=r"neither steps nor minutes"):
        run_of(tmp_path / "none", {"medusa": plan("medusa")}, steps=None).run()


def test_timed_steps_leave_no_trace(tmp_path: Path) -> None:
    fresh = {"medusa": plan("medusa")}
    before = weights(fresh)
    timed = run_of(tmp_path, fresh, steps=None, minutes=0.02)
    assert timed._choose_steps(None) and timed.steps >= 1 and not timed._active
    assert all(torch.equal(weights(fresh)[name], t) for name, t in before.items())
    until = threading.Event()
    until.set()
    assert not run_of(tmp_path / "other", fresh, steps=None, minutes=1.0).run(until=until)
    assert checkpoint.read(tmp_path / "other") is None


@dataclass(frozen=True, slots=True, eq=False)
class Spoiled:
    """A learner whose loss, or whose gradient, stops being a number at some call."""

    inner: Any
    calls: list[int]
    at: int
    loss: bool = True

    @property
    def needs(self) -> Any:
        return self.inner.needs

    def groups(self) -> Any:
        return self.inner.groups()

    def losses(self, shown: Any, progress: float) -> Iterator[Any]:
        self.calls.append(1)
        for group, loss, figures in self.inner.losses(shown, progress):
            if len(self.calls) > self.at:
                if self.loss:
                    loss = loss * torch.nan
                else:
                    loss.register_hook(lambda grad: grad * torch.nan)
            yield group, loss, figures


def spoiled(at: int, loss: bool = True) -> TrainPlan:
    made = plan("medusa")
    (stage,) = made.learns
    return replace(made, stages=(Learn(Spoiled(stage.learner, [], at, loss), stage.rate),))


def test_loss_that_is_not_finite_stops_and_names_its_dialogues(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"medusa": spoiled(5)}, save_every=1e-9)
    with pytest.raises(TrainError) as stopped:
        run.run()
    numbers = run.batches.at(5).numbers
    assert "medusa: the loss of step 5 is nan" in str(
        stopped.value
    ) and "hint: the last checkpoint is not affected" in str(stopped.value)
    assert f"dialogues {', '.join(map(str, numbers[:8]))}" in str(stopped.value)
    kept = checkpoint.read(tmp_path)
    assert kept is not None and kept[1]["step"] == 5 and not checkpoint.not_finite(kept[0])
    assert run_of(tmp_path, {"medusa": plan("medusa")}).run(), "the run goes on from it"


@pytest.mark.parametrize("how", ["saving", "measuring", "pausing", "ending"])
def test_weights_that_are_not_finite_are_never_saved_or_measured(tmp_path: Path, how: str) -> None:
    more = {
        "saving": {"save_every": 1e-9},
        "measuring": {"measure_every": 1e-9},
        "pausing": {"pause_after": 1e-9},
        "ending": {"steps": 1},
    }[how]
    looks: list[int] = []
    for loss in (True, False):
        folder = tmp_path / f"{loss}"
        with pytest.raises(TrainError, match=r"NaN or infinite|is nan"):
            run_of(folder, {"medusa": spoiled(0, loss)}, **more).run(measure=looks.append)
        assert checkpoint.read(folder) is None
    assert not looks


def test_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    run_of(tmp_path, {"medusa": plan("medusa")}, steps=2).run()
    for more, said in (({"seed": 1, "steps": 2}, "seed was 0, now it is 1"), ({"steps": 4}, "a run of 2 steps, not 4")):
        with pytest.raises(TrainError, match=said):
            run_of(tmp_path, {"medusa": plan("medusa")}, **more).run()
    with pytest.raises(TrainError, match=r"holds no eagle/fc\.weight"):
        run_of(tmp_path, {"eagle": plan("eagle")}, steps=2).run()


def test_noise_is_one_for_every_step() -> None:
    assert len({noise_seed(s, step) for s in range(3) for step in range(50)}) == 150
    assert noise_seed(0, 1) == noise_seed(0, 1) < 1 << 62


def test_unrolled_plan_with_another_tap_is_shown_it(tmp_path: Path) -> None:
    made = feature_plan(
        "eagle3", target(), KEEP, taps=(1, 2), unroll=2, regress=0.0, rate=1e-3, seed=0, target_rows=True
    )
    run = run_of(tmp_path, {"one": made, "two": plan("medusa")}, steps=1)
    assert run.taps == {1, 2, -1} and run.run()

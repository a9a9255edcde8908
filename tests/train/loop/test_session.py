"""From a target and its data to weights that a recipe loads; bad input is refused by name before anything is trained."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock

from draftwood import recipes
from draftwood.drafters.nets.files.store import read
from draftwood.errors import CompositionError, OptionError, TrainError, UnknownNameError
from draftwood.models.loading.load import Loaded, load
from draftwood.runners.open import runner_of
from draftwood.testing.folder import write_folder
from draftwood.train.loop import train_log
from draftwood.train.loop.measure import head_file
from draftwood.train.loop.session import Session, TrainSettings
from tiny_run import write_data


def settings(tmp_path: Path, *names: str, **more: Any) -> TrainSettings:
    data = more.pop("data", None) or write_data(tmp_path / "data")
    data = (data,) if isinstance(data, Path) else tuple(data)
    chosen = {"steps": 3, "draft_vocab_size": 64, "batch_tokens": 256, "prompts": 2, **more}
    return TrainSettings(recipes=names or ("medusa",), data=data, out=tmp_path / "out", **chosen)


def test_batches_are_larger_on_a_gpu_unless_their_size_is_given(tmp_path: Path) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda:1")
    free, fixed = settings(tmp_path, batch_tokens=None), settings(tmp_path, batch_tokens=256)
    assert free.batch_positions(cpu) < free.batch_positions(gpu)
    assert fixed.batch_positions(cpu) == fixed.batch_positions(gpu) == 256
    assert free.answer_tokens(gpu) == 3 * free.batch_positions(gpu) // 2


def test_time_of_fixed_steps_is_estimated_from_a_pass_of_the_target(tiny: Loaded, tmp_path: Path) -> None:
    short, long = (Session(tiny, settings(tmp_path, steps=steps)).least_seconds() for steps in (1, 100_000))
    assert short is not None and long is not None and 0 < short < long
    assert Session(tiny, settings(tmp_path, steps=None, minutes=1.0)).least_seconds() is None


def test_loaded_target_stays_where_it_is(tiny: Loaded, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is loaded on cpu, not on meta"):
        Session(tiny, settings(tmp_path), device="meta")


def test_weights_are_what_the_recipe_loads(tiny: Loaded, tmp_path: Path) -> None:
    looks: list[Any] = []
    session = Session(tiny, settings(tmp_path, "medusa", "eagle2"))
    assert session.run(on_measured=lambda name, found, step: looks.append((name, step)))
    assert looks == [("medusa", 0), ("eagle2", 0), ("medusa", 3), ("eagle2", 3)], "what it starts from, and what ships"
    for name in ("medusa", "eagle2"):
        head = read(head_file(tmp_path / "out", name))
        assert head.target == tiny.fingerprint and head.record["step"] == 3 and head.record["target"] == "tiny"
        recipes.build(name, runner_of(tiny), weights=str(head_file(tmp_path / "out", name)))


def test_a_run_that_ended_is_stored_in_fewer_bits_by_the_same_command(tiny: Loaded, tmp_path: Path) -> None:
    plan = settings(tmp_path, "eagle2")
    assert Session(tiny, plan).run()
    file = head_file(tmp_path / "out", "eagle2")
    wide, size = read(file), file.stat().st_size
    steps: list[Any] = []
    looks: list[Any] = []
    for _ in range(2):  # acceptance is measured again, once
        again = Session(tiny, replace(plan, bits=4))
        assert again.run(steps.append, lambda name, found, step: looks.append((found.tokens_per_pass, step)))
    assert not steps and [step for _, step in looks] == [3]
    small = read(file)
    assert file.stat().st_size < 0.8 * size
    assert small.record == {**wide.record, "bits": 4, "tokens_per_pass": round(looks[0][0], 4)}
    for name, t in wide.tensors.items():
        step = (t.amax() - t.amin()) / 15
        assert (small.tensors[name] - t).abs().max() <= 0.6 * step, name
    recipes.build("eagle2", runner_of(tiny), weights=str(file))


def test_interrupted_run_resumes_without_logging_a_step_twice(tiny: Loaded, tmp_path: Path) -> None:
    until = threading.Event()
    plan = settings(tmp_path, steps=25)
    first = Session(tiny, plan)
    assert not first.run(lambda report: until.set() if report.step == 12 else None, until=until)
    assert 12 < first.step < 25 and head_file(plan.out, "medusa").exists()
    with (plan.out / train_log.FILE).open("a") as file:
        file.write(json.dumps({"step": 20, "tokens": 1, "losses": {"medusa": 9.0}}) + '\n{"torn')
    second = Session(tiny, plan)
    assert second.run()
    steps = [e["step"] for e in train_log.read(plan.out / train_log.FILE) if "losses" in e]
    assert steps == [0, 10, 20, 24] == [e["step"] for e in second.log.entries if "losses" in e]
    assert second.run(), "an ended run is told so"
    assert [e["step"] for e in second.log.measurements("medusa")] == [0, 25]


def test_an_interrupted_run_of_probes_ends_with_the_same_weights(tiny: Loaded, tmp_path: Path) -> None:
    """Beside an int8 target, whose layers are differentiated through as floats."""
    options, found = {"sdsat": {"probes": 2, "rate": 1e-2}}, list[bytes]()
    for place in ("whole", "parts"):
        plan, until = settings(tmp_path / place, "sdsat", steps=6, options=options), threading.Event()
        if place == "parts":
            assert not Session(tiny, plan).run(lambda r, u=until: u.set() if r.step == 3 else None, until=until)
        session = Session(tiny, plan)
        assert session.run() and session.tokens_per_pass("sdsat") is not None
        found.append(head_file(plan.out, "sdsat").read_bytes())
    assert found[0] == found[1]
    head = read(head_file(tmp_path / "parts" / "out", "sdsat"))
    assert head.config.kind == "probes" and head.config.stages == 2 and head.record["options"]["size"] == "paper"
    recipe: Any = recipes.build("sdsat", runner_of(tiny), weights=str(head_file(plan.out, "sdsat")), size="paper")
    assert recipe.drafter.depth == 2


@pytest.mark.parametrize("name", ["dynamic_mcsd", "ada_eagle", "specdec_pp"])
def test_a_net_for_another_drafter_is_measured_with_that_drafter(name: str, tiny: Loaded, tmp_path: Path) -> None:
    inner = "speculative_sampling:draft=first:1"
    looks: list[Any] = []
    session = Session(tiny, settings(tmp_path, name, options={name: {"inner": inner}}))
    assert session.run(on_measured=lambda name, found, step: looks.append((name, step)))
    assert looks == [(name, 0), (name, 3)]
    path = head_file(tmp_path / "out", name)
    head = read(path)
    assert head.ids is None and head.record["options"]["inner"] == inner, "no tokens are its own"
    recipes.build(name, runner_of(tiny), weights=str(path), inner=inner)
    with pytest.raises(CompositionError, match="train others"):
        recipes.build(name, runner_of(tiny), weights=str(path), inner="speculative_sampling:draft=first:2")


def test_nets_behind_exits_share_the_passes_of_one_target(tmp_path: Path) -> None:
    """A run that is interrupted ends with the same files; each holds all nets of its recipe."""
    target = load(str(write_folder(tmp_path / "deep", num_layers=4)))
    names, files = ("kangaroo", "eesd", "hispec"), list[dict[str, Any]]()
    until = threading.Event()
    for folder, stop in (("whole", False), ("parts", True)):
        plan = replace(settings(tmp_path, *names), out=tmp_path / folder)
        if stop:
            first = Session(target, plan)
            assert not first.run(lambda report: until.set(), until=until) and 0 < first.step < 3
        assert Session(target, plan).run()
        heads = {name: read(head_file(plan.out, name)) for name in names}
        files.append({name: head.tensors for name, head in heads.items()})
        assert heads["hispec"].config.taps == (1, 2) and heads["hispec"].record["step"] == 3
        for name in names:
            weights = str(head_file(plan.out, name))
            assert recipes.build(name, runner_of(target), weights=weights, size="paper").lossless
    for name, tensors in files[0].items():
        assert all(torch.equal(t, files[1][name][key]) for key, t in tensors.items())


def test_joined_sequences_belong_to_the_run(tiny: Loaded, tmp_path: Path) -> None:
    until = threading.Event()
    plan = settings(tmp_path, steps=8, join=True)
    assert not Session(tiny, plan).run(lambda report: until.set() if report.step == 3 else None, until=until)
    with pytest.raises(TrainError, match="join"):
        Session(tiny, replace(plan, join=False)).run()
    assert Session(tiny, plan).run() and read(head_file(plan.out, "medusa")).record["joined"] is True


def test_counts_are_made_without_a_net_and_found_by_their_option(tiny: Loaded, tmp_path: Path) -> None:
    session = Session(tiny, settings(tmp_path, "vocab_trim", steps=None))
    assert session.run() and [e["step"] for e in session.log.measurements("vocab_trim")] == [0]
    path = tmp_path / "out" / f"counts-{tiny.fingerprint}.npy"
    total = np.load(path)
    assert total.dtype == np.int32 and total.sum() == session.train.num_answer_tokens
    assert session.made == {"vocab_trim": {"counts": str(path)}} and not session.nets
    assert not (tmp_path / "out" / "checkpoint").exists()
    recipe: Any = recipes.build(
        "vocab_trim", runner_of(tiny), counts=str(path), inner="speculative_sampling:draft=first:1", vocab_size=20
    )
    assert set(recipe.drafter.keep.tolist()) >= set(np.argsort(-total, kind="stable")[:20].tolist())


def test_counts_and_weights_in_one_run(tiny: Loaded, tmp_path: Path) -> None:
    session = Session(tiny, settings(tmp_path, "medusa", "vocab_trim"))
    assert session.run() and head_file(tmp_path / "out", "medusa").exists() and session.made["vocab_trim"]
    recipes.build(
        "vocab_trim",
        runner_of(tiny),
        inner=f"medusa:weights={head_file(tmp_path / 'out', 'medusa')}",
        vocab_size=30,
        **session.made["vocab_trim"],
    )


def test_counts_are_kept_where_they_cannot_be_measured(tiny: Loaded, tmp_path: Path, monkeypatch: Any) -> None:
    """The counts may be meant for a drafter that is not there yet."""

    def fail(*_: Any, **__: Any) -> None:
        raise CompositionError("no drafter\nhint: none")

    monkeypatch.setattr("draftwood.train.loop.session.measure", fail)
    said: list[str] = []
    session = Session(tiny, settings(tmp_path, "vocab_trim", steps=None))
    assert session.run(on_message=said.append) and "vocab_trim is not measured: no drafter" in said
    assert Path(session.made["vocab_trim"]["counts"]).exists()
    with pytest.raises(CompositionError):  # a twin: weights that do not run are no success
        Session(tiny, settings(tmp_path / "other")).run()


def test_several_folders_are_in_the_record_of_the_weights(tiny: Loaded, tmp_path: Path) -> None:
    data = [write_data(tmp_path / "a"), write_data(tmp_path / "b", seed=10)]
    for seed, path in enumerate(data):
        excluded = [{"name": "q.jsonl", "sha256": "aa", "questions": 3}]
        (path / "record.json").write_text(json.dumps({"seed": seed, "answer_tokens": 5, "excluded": excluded}))
    session = Session(tiny, settings(tmp_path, data=data))
    assert session.run()
    about = read(head_file(tmp_path / "out", "medusa")).record["data"]
    assert about["dialogues"] == 48 and about["record"]["answer_tokens"] == 10
    assert [f["seed"] for f in about["record"]["folders"]] == [0, 1] and about["record"]["excluded"]
    with pytest.raises(TrainError, match="holds another run: data was"):
        Session(tiny, settings(tmp_path, data=data[:1])).run()


def test_broken_lines_are_counted_and_named(tiny: Loaded, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    with (data / "train.jsonl").open("a") as file:
        file.write('{"tokens": [1, 2\n{"tokens": [1, 999], "answers": [[0, 2]]}\n')
    session = Session(tiny, settings(tmp_path, data=data))
    (complaint,) = session.complaints
    assert "2 lines are not dialogues" in complaint and "line 25" in complaint
    assert "line 26: token 999 is not among 258" in complaint and len(session.train) == 24


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", r"(?s)train.jsonl is empty.*hint: one JSON object"),
        ("nonsense\n", r"(?s)1 lines are not dialogues.*not JSON"),
        ('{"tokens": [1, 70000], "answers": [[0, 2]]}\n', r"(?s)70000 is not among 258.*another vocabulary"),
    ],
)
def test_data_without_a_dialogue_is_refused(tiny: Loaded, tmp_path: Path, lines: str, said: str) -> None:
    data = write_data(tmp_path / "data")
    (data / "train.jsonl").write_text(lines)
    with pytest.raises(OptionError, match=said):
        Session(tiny, settings(tmp_path, data=data))


def test_empty_held_out_file_and_one_file_for_all(tiny: Loaded, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    (data / "heldout.jsonl").write_text("")
    assert (session := Session(tiny, settings(tmp_path, data=data))).held is session.train
    assert (session := Session(tiny, settings(tmp_path, data=data / "train.jsonl"))).held is session.train


def test_a_draft_can_say_the_most_frequent_tokens_and_every_control_token(tiny: Loaded, tmp_path: Path) -> None:
    plan = settings(tmp_path, draft_vocab_size=3)
    with (plan.data[0] / "train.jsonl").open("a") as file:  # 256 and 257, begin and end, are never written
        file.write(json.dumps({"tokens": [1, *[9] * 300, *[7] * 200, *[8] * 100, 5], "answers": [[1, 601]]}))
    session = Session(tiny, plan)
    assert session.keep.tolist() == [7, 8, 9, 256, 257] and 0.3 < session.coverage < 1


def test_more_rows_than_tokens_are_all_of_them(tiny: Loaded, tmp_path: Path) -> None:
    session = Session(tiny, settings(tmp_path, draft_vocab_size=1_000_000))
    assert len(session.keep) == 258 and session.coverage == 1.0


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"names": ("eagle4",)}, UnknownNameError, "did you mean 'eagle"),
        ({"names": ("prompt_lookup",)}, OptionError, r"(?s)prompt_lookup has nothing to train.*hint: .*eagle3"),
        ({"steps": 3, "minutes": 2.0}, OptionError, r"(?s)--steps 3 and --minutes 2.0 were both given.*hint: one"),
        ({"steps": None, "minutes": 0.0}, OptionError, "minutes cannot be 0"),
        ({"steps": None, "minutes": float("nan")}, OptionError, "minutes cannot be nan"),
        ({"steps": None, "minutes": float("inf")}, OptionError, "minutes cannot be inf"),
        ({"seed": -1}, OptionError, "seed cannot be -1"),
        ({"seed": 10**20}, OptionError, "seed cannot be 1000"),
        ({"names": ("eagle3:nodes=8",)}, OptionError, r"(?s)without its options.*hint: --option"),
        ({"bits": 5}, OptionError, r"bits cannot be 5\nhint: 8, or 4"),
        ({"prompt_share": 1.5}, OptionError, "prompt_share cannot be 1.5"),
        ({"prompt_share": float("nan")}, OptionError, "prompt_share cannot be nan"),
    ],
)
def test_invalid_settings_are_refused(tmp_path: Path, more: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        settings(tmp_path, *more.pop("names", ()), **more)


def test_no_recipe_and_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "deep"):
        with pytest.raises(OptionError, match=r"(?s)file is a file.*hint: name a folder"):
            TrainSettings(recipes=("medusa",), data=(tmp_path,), out=out)
    with pytest.raises(OptionError, match="no data to train on"):
        TrainSettings(recipes=("medusa",), data=(), out=tmp_path)
    with pytest.raises(OptionError, match="no recipe to train"):
        TrainSettings(recipes=(), data=(tmp_path,), out=tmp_path)


def test_two_runs_do_not_share_a_folder(tiny: Loaded, tmp_path: Path) -> None:
    session = Session(tiny, settings(tmp_path))
    (tmp_path / "out").mkdir()
    with FileLock(tmp_path / "out" / ".lock"), pytest.raises(OptionError, match="another run is writing"):
        session.run()


def test_run_with_other_data_is_refused_even_where_counts_agree(tiny: Loaded, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    Session(tiny, settings(tmp_path, data=data)).run()
    lines = (data / "train.jsonl").read_text().splitlines(keepends=True)
    (data / "train.jsonl").write_text("".join(reversed(lines)))
    with pytest.raises(TrainError, match=r"(?s)holds another run: data was .*hint: another --out"):
        Session(tiny, settings(tmp_path, data=data)).run()
    (data / "train.jsonl").write_text("".join(lines))
    with pytest.raises(TrainError, match="option was"):
        Session(tiny, settings(tmp_path, data=data, options={"medusa": {"rate": 0.5}})).run()


def test_share_of_the_prompts_belongs_to_the_run(tiny: Loaded, tmp_path: Path) -> None:
    assert Session(tiny, settings(tmp_path, prompt_share=0.25)).run()
    assert read(head_file(tmp_path / "out", "medusa")).record["prompt_share"] == 0.25
    for share, now in ((0.5, "0.5"), (0.0, "nothing")):
        with pytest.raises(TrainError, match=rf"holds another run: prompt-share was 0.25, now it is {now}"):
            Session(tiny, settings(tmp_path, prompt_share=share)).run()


@pytest.mark.parametrize("options", [{"rate": float("nan")}, {"rate": 0.0}, {"rate": -1.0}, {"unroll": 0}])
def test_options_of_a_training_that_make_no_sense_are_refused(tiny: Loaded, tmp_path: Path, options: Any) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(options))} cannot be"):
        Session(tiny, settings(tmp_path, "eagle3", options={"eagle3": options}))


def test_head_file_that_no_run_wrote_is_not_overwritten(tiny: Loaded, tmp_path: Path) -> None:
    plan = settings(tmp_path)
    path = head_file(plan.out, "medusa")
    path.parent.mkdir()
    path.write_bytes(b"precious")
    with pytest.raises(OptionError, match=r"(?s)was not written by a run in this folder.*hint: another --out"):
        Session(tiny, plan).run()
    assert path.read_bytes() == b"precious"
    path.unlink()
    assert Session(tiny, plan).run() and Session(tiny, plan).run(), "its own are known"


def test_weights_too_large_for_their_file_never_reach_it(tiny: Loaded, tmp_path: Path) -> None:
    plan = settings(tmp_path, "eagle3", options={"eagle3": {"rate": 1e9}})
    with pytest.raises(TrainError, match=r"(?s)lower the rate"):
        Session(tiny, plan).run()
    assert read(head_file(plan.out, "eagle3")).record["step"] == 0, "what it began with"

"""draftwood train RECIPE, as a user meets it: killed at any moment it ends with the same bytes; mistakes are refused."""

import json
import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood.cli.main import app
from draftwood.cli.making.train_recipe import reference
from draftwood.testing import folder
from draftwood.testing.folder import write_folder
from draftwood.train.data.make_dataset import DatasetSettings, make_dataset
from draftwood.train.loop import checkpoint
from tiny_run import write_data


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model/ and data/"""
    place = tmp_path_factory.mktemp("made")
    write_folder(place / "model", num_layers=3)  # two exits need so many
    write_data(place / "data")
    return place


def words(made: Path, out: Path, name: str = "medusa", *more: str, steps: int | None = 3) -> list[str]:
    chosen = [] if steps is None else ["--steps", f"{steps}"]
    where = ["--target", str(made / "model"), "--data", str(made / "data"), "--out", str(out)]
    return [
        "train",
        name,
        *where,
        *chosen,
        "--draft-vocab-size",
        "64",
        "--batch-tokens",
        "256",
        "--prompts",
        "1",
        *more,
    ]


def losses(out: Path) -> list[tuple[int, dict[str, float]]]:
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [(e["step"], e["losses"]) for e in entries if "losses" in e]


def steps_done(out: Path) -> int:
    found = checkpoint.read(out / "checkpoint")
    return 0 if found is None else found[1]["step"]


def test_weights_and_a_table(made: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, words(made, tmp_path / "out", "medusa,vocab_trim"))
    assert done.exit_code == 0, done.output
    assert "medusa.safetensors" in done.stdout and "counts-" in done.stdout and "done" in done.stderr
    again = CliRunner().invoke(app, words(made, tmp_path / "out", "medusa,vocab_trim"))
    assert again.exit_code == 0 and again.stdout == done.stdout


def test_a_loss_is_printed_with_its_reference() -> None:
    """Guessed tokens where there are such; a net that decides has none, and is held against the best constant."""
    assert reference({"hit0": 0.42, "hit1": 0.3}) == " (hit 0.42)"
    assert reference({"kept": 0.6, "constant": 0.5771}) == " (best constant 0.577)"
    assert reference({}) == ""


def test_what_is_measured_on_learned_prompts_is_not_called_held_out(made: Path, tmp_path: Path) -> None:
    lines = (made / "data" / "train.jsonl").read_text()
    (tmp_path / "few.jsonl").write_text(lines)
    chosen = [w if w != str(made / "data") else str(tmp_path / "few.jsonl") for w in words(made, tmp_path / "out")]
    done = CliRunner().invoke(app, chosen)
    assert done.exit_code == 0, done.output
    assert "too few to hold any out" in done.stderr and "tokens per pass on prompts of the training data" in done.stderr
    assert "held-out" not in done.stderr
    other = CliRunner().invoke(app, words(made, tmp_path / "other"))
    assert "tokens per pass on held-out prompts" in other.stderr


@pytest.mark.long
@pytest.mark.parametrize("names", [("fast_draft",), ("kangaroo", "eesd", "hispec", "s2d", "sdsat")], ids=len)
def test_killed_again_and_again_it_ends_with_the_same_bytes(
    made: Path, tmp_path: Path, names: tuple[str, ...], start: Any
) -> None:
    """Language models change their stage after a fifth of the steps; kills come at random moments, before and after it."""
    sizes = {"width": 32, "heads": 2, "inner": 64}
    small = [f"{name}.{key}={value}" for name in names if name in ("fast_draft", "s2d") for key, value in sizes.items()]
    more = [word for each in small for word in ("--option", each)]
    more += ["--save-every", "0.0005"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert start(*words(made, whole, ",".join(names), *more, steps=40)).wait() == 0
    rng = random.Random(1)
    kills = 0
    for aim in (6, 8, 24):  # steps, and then a moment that no save chose
        process = start(*words(made, broken, ",".join(names), *more, steps=40))
        while process.poll() is None and steps_done(broken) < aim:
            time.sleep(0.02)
        time.sleep(rng.random() * 0.1)
        kills += process.poll() is None
        process.kill()
        process.wait()
        assert steps_done(broken) > 0, "what is there is whole"
    last = start(*words(made, broken, ",".join(names), *more, steps=40))
    assert last.wait() == 0 and kills >= 2
    assert losses(broken) == losses(whole) and [s for s, _ in losses(broken)] == [0, 10, 20, 30, 39]
    for name in names:
        assert (broken / f"{name}.safetensors").read_bytes() == (whole / f"{name}.safetensors").read_bytes(), name
    assert not list(broken.rglob("*.tmp"))


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_minutes_are_saved_and_go_on_with_the_same_steps(
    made: Path, tmp_path: Path, number: int, start: Any
) -> None:
    out = tmp_path / "out"
    more = words(made, out, "medusa", "--minutes", "0.5", "--save-every", "0.0005", steps=None)
    process = start(*more)
    while process.poll() is None and steps_done(out) < 1:
        time.sleep(0.02)
    process.send_signal(number)
    said = process.communicate()[1].decode()
    assert process.returncode == 130 and "saved: the same command resumes" in said, said
    first = checkpoint.read(out / "checkpoint")
    assert first is not None and 0 < first[1]["step"] < first[1]["steps"] and f"after {first[1]['step']} steps" in said
    if number == signal.SIGTERM:
        return  # the rest is the same
    assert start(*more).wait() == 0
    last = checkpoint.read(out / "checkpoint")
    assert last is not None and last[1]["step"] == last[1]["steps"] == first[1]["steps"]
    steps = [s for s, _ in losses(out)]
    assert steps == sorted(set(steps)) and steps[-1] == last[1]["steps"] - 1
    plain = tmp_path / "plain"
    assert start(*words(made, plain, "medusa", steps=last[1]["steps"])).wait() == 0
    assert (plain / "medusa.safetensors").read_bytes() == (out / "medusa.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("eagle4", [], "did you mean 'eagle"),
        ("prompt_lookup", [], "prompt_lookup has nothing to train"),
        (",", [], "no recipe to train"),
        ("medusa", ["--minutes", "1"], "--steps 3 and --minutes 1.0 were both given"),
        ("medusa", ["--option", "colour=red"], "medusa has no option 'colour'"),
        ("medusa,hydra", ["--option", "colour=red"], "none of medusa, hydra has it"),
        ("medusa,hydra", ["--option", "medusa.colour=red"], "medusa has no option 'colour'"),
        ("medusa", ["--option", "eagle.rate=1"], "names no recipe that is trained here"),
        ("medusa", ["--option", "rate"], "is not KEY=VALUE"),
        ("medusa", ["--option", "stages=many"], "cannot be 'many'"),
        ("vocab_trim", ["--option", "rate=1"], "vocab_trim has no option 'rate'"),
        ("medusa", ["--pause-after", "0"], "pause_after cannot be 0"),
        (
            "medusa",
            ["--data", "no-such-file"],
            "No such file or directory\nhint: `draftwood train data --out",
        ),
        ("medusa", ["--from", "no-such-file"], "--from no-such-file: there is no such file"),
        ("medusa", ["--from", "auto"], "no weights of kind 'medusa' ship for this target"),
        ("kangaroo", ["--option", "layers=3"], "after 3 layers is not inside the target\nhint: from 1 to 2"),
        ("eesd", ["--option", "layers=0"], "after 0 layers is not inside the target\nhint: from 1 to 2"),
        ("eesd", ["--option", "share=0"], "share cannot be 0.0\nhint: of the positions, more than 0"),
        ("hispec", ["--option", "share=2"], "share cannot be 2.0\nhint: of the positions, more than 0"),
        (
            "hispec",
            ["--option", "draft_layers=2"],
            "reviewed after 3 do not fit a target of 3\nhint: 1 <= draft_layers < review_layers <= 2",
        ),
        ("sdsat", ["--option", "probes=0"], "probes cannot be 0\nhint: a whole number, at least 1"),
        ("s2d", ["--option", "exits=1,4"], "exits cannot be [1, 4]\nhint: ascending from 1 on, the last one 3"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(
    made: Path, tmp_path: Path, name: str, more: list[str], said: str
) -> None:
    done = CliRunner().invoke(app, words(made, tmp_path / "out", name, *more))
    assert done.exit_code == 2 and said in done.stderr, done.output
    assert not (tmp_path / "out").exists()


def test_out_that_is_a_file(made: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    done = CliRunner().invoke(app, words(made, tmp_path / "out"))
    assert done.exit_code == 2 and "is a file" in done.stderr and (tmp_path / "out").read_text() == "mine"


@pytest.mark.slow
def test_options_go_to_the_recipes_that_have_them(made: Path, tmp_path: Path) -> None:
    more = ["--option", "stages=2", "--option", "hydra.rate=0.5"]
    done = CliRunner().invoke(app, words(made, tmp_path / "out", "medusa,hydra", *more, steps=1))
    assert done.exit_code == 0, done.output
    from draftwood.drafters.nets.files.store import read

    heads = {name: read(tmp_path / "out" / f"{name}.safetensors") for name in ("medusa", "hydra")}
    assert heads["medusa"].record["options"] == {"stages": 2}
    assert heads["hydra"].record["options"] == {"stages": 2, "rate": 0.5}
    assert all(head.config.stages == 2 for head in heads.values())


def test_corrupt_checkpoint_and_one_of_another_run(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert CliRunner().invoke(app, words(made, out)).exit_code == 0
    other = CliRunner().invoke(app, words(made, out, "medusa", "--seed", "4"))
    assert other.exit_code == 2 and "holds another run: seed was 0, now it is 4" in other.stderr
    file = out / "checkpoint" / checkpoint.FILE
    file.write_bytes(file.read_bytes()[:-100])
    done = CliRunner().invoke(app, words(made, out))
    assert done.exit_code == 2 and "is not a checkpoint" in done.stderr and "hint: delete it" in done.stderr


def without_data(place: Path, *more: str, steps: int | None = 3) -> list[str]:
    """The words of a run that makes its data first, with a model that it writes."""
    write_folder(place / "model")
    chosen = words(place, place / "out", "medusa", *more, steps=steps)
    return [w for w in chosen if w not in ("--data", str(place / "data"))]


@pytest.mark.slow
def test_run_without_data_makes_as_much_as_its_steps_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "CONFIG", replace(folder.CONFIG, max_positions=1024))
    chosen = without_data(tmp_path, steps=3)
    done = CliRunner().invoke(app, chosen)
    assert done.exit_code == 0, done.output
    data = tmp_path / "out" / "data"
    record, written = json.loads((data / "record.json").read_text()), (data / "train.jsonl").read_bytes()
    needed = 3 * 256 // 2  # half of the batches' positions
    assert "writes dialogues into" in done.stderr and f"{needed} answer tokens" in done.stderr
    assert record["lines"]["train"] >= 4 and needed <= record["answer_tokens"] < needed + 4 * 768
    again = CliRunner().invoke(app, chosen)
    assert again.exit_code == 0 and "writes dialogues" not in again.stderr
    assert (data / "train.jsonl").read_bytes() == written


@pytest.mark.slow
def test_many_steps_do_not_make_more_than_the_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood.cli.making.train_recipe.MOST_TOKENS", 300)
    monkeypatch.setattr(folder, "CONFIG", replace(folder.CONFIG, max_positions=1024))
    done = CliRunner().invoke(app, without_data(tmp_path, steps=5))
    assert done.exit_code == 0 and "300 answer tokens" in done.stderr, done.output


def test_a_useless_drafter_is_called_so(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftwood.drafters.nets.files.store import read
    from draftwood.train.loop import head_record, measure

    done = CliRunner().invoke(app, words(made, tmp_path / "out", steps=1))
    assert done.exit_code == 0, done.output
    assert "the drafter medusa is not useful yet: 1.0" in done.stderr and "on held-out prompts" in done.stderr
    assert "hint: train longer" in done.stderr
    record = read(tmp_path / "out" / "medusa.safetensors").record
    assert 1 <= record["tokens_per_pass"] < measure.LEAST_USEFUL and record["useful"] is False
    for module in (measure, head_record):  # a twin: nothing is said of a drafter that has what it needs
        monkeypatch.setattr(module, "LEAST_USEFUL", 0.5)
    other = CliRunner().invoke(app, words(made, tmp_path / "other", steps=1))
    assert other.exit_code == 0 and "not useful" not in other.stderr
    assert read(tmp_path / "other" / "medusa.safetensors").record["useful"] is True


@pytest.mark.slow
def test_time_that_was_spent_without_a_dialogue_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that used all its minutes for data and ended none goes on writing, by the same command."""
    monkeypatch.setattr(folder, "CONFIG", replace(folder.CONFIG, max_positions=1024))
    out, chosen = tmp_path / "out", without_data(tmp_path, "--minutes", "0.01", steps=None)
    make_dataset(str(tmp_path / "model"), out / "data", DatasetSettings(tokens=None, minutes=1e-5))
    file = out / "data" / "record.json"
    record = json.loads(file.read_text())
    assert record["answer_tokens"] == 0 and (out / "data" / "train.jsonl").read_bytes() == b""
    file.write_text(json.dumps({**record, "seconds": 999.0}))
    done = CliRunner().invoke(app, chosen)
    assert done.exit_code == 0, done.output
    assert "writes dialogues into" in done.stderr and "were too few for 4 dialogues" in done.stderr
    assert json.loads(file.read_text())["lines"]["train"] >= 4

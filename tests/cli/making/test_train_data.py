"""draftwood train data, as a user meets it: a table at the end, and a kill in the middle that costs nothing."""

import io
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood.cli.main import app
from draftwood.cli.making.train_data import watch
from draftwood.testing.folder import write_folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_folder(tmp_path_factory.mktemp("models") / "tiny"))


def words(tiny: str, out: Path, *more: str, tokens: int = 400) -> list[str]:
    return ["train", "data", "--target", tiny, "--out", str(out), "--tokens", f"{tokens}", "--max-tokens", "16", *more]


def test_data_is_written_and_counted(tiny: str, tmp_path: Path):
    done = CliRunner().invoke(app, words(tiny, tmp_path, "--mix", "math=0.5, code=0.5"))
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "record.json").read_text())
    kinds = [line.split()[0] for line in done.stdout.splitlines()[2:4]]
    assert sorted(kinds) == ["code", "math"] == sorted(record["kinds"])
    assert f"{record['tokens_written']} tokens written" in done.stdout
    assert not {"settings", "texts", "backend", "excluded", "dropped", "lines", "seed"} - set(record)


def test_progress_counts_dialogues_and_ends_where_there_is_nothing_more_to_say():
    stream, times = io.StringIO(), iter((0.0, 40.0, 80.0))
    say: Any = watch(None, stream, lambda: next(times))
    kinds = {"chat": {"dialogues": 8}, "math": {"dialogues": 2}}
    for written, answered, found in ((0, 0, {}), (400, 0, {}), (800, 600, kinds)):
        say(SimpleNamespace(totals=SimpleNamespace(tokens_written=written, answer_tokens=answered, kinds=found)))
    assert stream.getvalue().splitlines() == [
        "0 answer tokens, 10 tokens/s written",
        "600 answer tokens, 10 tokens/s written; dialogues: chat 8, math 2",
    ]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--mix", "chess=1"], "unknown kind of dialogue: 'chess'"),
        (["--mix", "chat=much"], "--mix cannot hold 'chat=much'"),
        (["--mix", "chat=0"], "has no share above 0"),
        (["--mix", "math=1,math=2"], "cannot hold"),
        (["--text", "no-such-file"], "there is no such file or folder"),
        (["--exclude", "no-such-file"], "cannot be read"),
        (["--minutes", "0"], "minutes cannot be 0"),
        (["--target", "smolm2"], "did you mean 'smollm2'?"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(tiny: str, tmp_path: Path, more: list[str], said: str):
    done = CliRunner().invoke(app, words(tiny, tmp_path / "out", *more))
    assert done.exit_code == 2 and said in done.stderr
    assert not (tmp_path / "out").exists()


def test_folder_of_another_target_is_refused(tiny: str, tmp_path: Path):
    mine = tmp_path / "out"
    assert CliRunner().invoke(app, words(tiny, mine, "--mix", "math=1")).exit_code == 0
    before = (mine / "train.jsonl").read_bytes()
    other = str(write_folder(tmp_path / "other", seed=1))
    for more in (["--target", other], ["--seed", "1"]):
        done = CliRunner().invoke(app, words(tiny, mine, *more))
        assert done.exit_code == 2 and "holds data of another run" in done.stderr and "hint:" in done.stderr
    assert (mine / "train.jsonl").read_bytes() == before


def saved(folder: Path) -> int:
    record = folder / "record.json"
    return json.loads(record.read_text())["answer_tokens"] if record.exists() else 0


@pytest.mark.long  # breaks of a run in this process are in tests/train/test_make.py
def test_killed_run_goes_on_to_the_same_files(tiny: str, tmp_path: Path, start):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    more = ["--mix", "math=0.3,code=0.3,question=0.4", "--batch", "4"]
    process = start(*words(tiny, broken, *more, tokens=6000))
    waited = time.monotonic() + 100
    while not saved(broken):
        assert process.poll() is None and time.monotonic() < waited
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert saved(broken) < 6000
    for folder in (broken, whole):
        assert CliRunner().invoke(app, words(tiny, folder, *more, tokens=6000)).exit_code == 0
    for name in ("train.jsonl", "heldout.jsonl"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()

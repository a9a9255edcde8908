"""The target's own training set: the same whatever happened meanwhile, every prompt once, on one side."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from draftwood.errors import EngineError
from draftwood.models.loading.load import Loaded
from draftwood.train.data import dialogue_writer as make
from draftwood.train.data.chat_turns import Turns, key_of
from draftwood.train.data.dialogues import HELDOUT, TRAIN, read
from draftwood.train.data.make_dataset import DatasetSettings, make_dataset

pytestmark = pytest.mark.slow  # whole runs

SMALL = DatasetSettings(tokens=1000, batch=4, max_tokens=24)


def files(folder: Path) -> tuple[bytes, bytes]:
    return (folder / TRAIN).read_bytes(), (folder / HELDOUT).read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny: Loaded) -> Path:
    """An unbroken run."""
    folder = tmp_path_factory.mktemp("whole")
    make_dataset(tiny, folder, SMALL)
    return folder


def test_spans_hold_what_the_target_says_after_what_stands_before(whole: Path, tiny: Loaded):
    found = read(whole, tiny.tokenizer, 258)
    assert found.complaint() is None and found.num_answer_tokens <= 1000 + 3 * 24
    for dialogue in found:
        for start, stop in dialogue.answers:
            before = tiny.tokenizer.decode(dialogue.tokens[:start].tolist())
            most = 24 * (3 if dialogue.kind == "chat" else 1)  # articles are longer
            assert before.startswith("user: ") and before.endswith("assistant: ") and 1 < stop - start <= most


def test_record_counts_what_the_files_hold(whole: Path, tiny: Loaded):
    record = make_dataset(tiny, whole, SMALL)  # there is enough already, so this changes nothing
    sides = {name: read(whole, tiny.tokenizer, 258, split=f"{name}.jsonl") for name in ("train", "heldout")
             if record["lines"][name]}  # fmt: skip
    everything = [d for found in sides.values() for d in found]
    assert record["lines"]["train"] == len(sides["train"]) and sum(record["lines"].values()) == len(everything)
    assert record["answer_tokens"] == sum(d.num_answer_tokens for d in everything) >= 1000
    for kind, count in record["kinds"].items():
        mine = [d for d in everything if d.kind == kind]
        assert count["dialogues"] == len(mine)
        assert count["prompt_tokens"] + count["answer_tokens"] == sum(len(d.tokens) for d in mine)
    assert record["target"] == {"name": tiny.name, "fingerprint": tiny.fingerprint}
    assert record["tokens_written"] >= record["answer_tokens"] and record["seconds"] > 0


@pytest.mark.parametrize("batch", [3, 7])
def test_files_do_not_depend_on_the_batch(whole: Path, tiny: Loaded, tmp_path: Path, batch: int):
    assert tiny.info.batch_invariant
    make_dataset(tiny, tmp_path, DatasetSettings(tokens=1000, batch=batch, max_tokens=24))
    assert files(tmp_path) == files(whole)


def test_run_that_was_broken_again_and_again_ends_with_the_same_files(
    whole: Path, tiny: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(make, "SAVE_DIALOGUES", 3)
    for steps in (5, 200, 90, 150):
        stop, left = threading.Event(), [steps]

        def tick(folder: object, stop: threading.Event = stop, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                stop.set()

        make_dataset(tiny, tmp_path, SMALL, until=stop, progress=tick)
        for name in (TRAIN, HELDOUT):  # what a kill between two saves leaves behind
            with (tmp_path / name).open("ab") as file:
                file.write(b'{"key":"0","kind":"chat","tokens":[1],"answers":[[0,1]]}\n{"key":"torn')
    make_dataset(tiny, tmp_path, SMALL)
    assert files(tmp_path) == files(whole)


def test_more_tokens_go_on_with_the_same_dialogues(whole: Path, tiny: Loaded, tmp_path: Path):
    make_dataset(tiny, tmp_path, DatasetSettings(tokens=400, batch=4, max_tokens=24))
    assert len(files(tmp_path)[0]) < len(files(whole)[0])
    make_dataset(tiny, tmp_path, SMALL)
    assert files(tmp_path) == files(whole)


def test_minutes_end_a_run_too(tiny: Loaded, tmp_path: Path):
    record = make_dataset(tiny, tmp_path, DatasetSettings(tokens=None, minutes=0.02, batch=4, max_tokens=24))
    assert 0.5 < record["seconds"] < 30


def test_minutes_that_are_over_end_nothing_before_the_least_is_there(tiny: Loaded, tmp_path: Path):
    for least in (0, 2):
        settings = DatasetSettings(tokens=None, minutes=1e-6, least=least, batch=4, max_tokens=24)
        record = make_dataset(tiny, tmp_path / str(least), settings)
        assert (record["lines"]["train"] >= 2) == bool(least)


def test_no_user_turn_comes_twice(tiny: Loaded, tmp_path: Path):
    settings = DatasetSettings(tokens=4000, batch=8, max_tokens=8, mix={"code": 0.5, "question": 0.5})
    record = make_dataset(tiny, tmp_path, settings)
    turns = Turns(tiny.tokenizer, tiny.config.eos_token_ids)
    sides = [read(tmp_path, tiny.tokenizer, 258, split=name) for name in (TRAIN, HELDOUT)]
    keys = [[key_of(turns.words(d.tokens[: d.answers[0][0]].tolist())) for d in side] for side in sides]
    together = keys[0] + keys[1]
    assert len(set(together)) == len(together) and keys[1]
    assert record["dropped"]["duplicate"] > 0


def test_excluded_questions_never_appear(tiny: Loaded, tmp_path: Path):
    """Every prompt over the only text is a hit, so nothing but the others is left."""
    (tmp_path / "q.jsonl").write_text('{"turns": ["How do I", "function that reverses a string"]}\n')
    settings = DatasetSettings(
        tokens=1500, batch=8, max_tokens=8, exclude=(tmp_path / "q.jsonl",), mix={"code": 0.5, "question": 0.5}
    )
    record = make_dataset(tiny, tmp_path / "out", settings)
    said = [tiny.tokenizer.decode(d.tokens.tolist()) for d in read(tmp_path / "out", tiny.tokenizer, 258)]
    assert not any("reverses a st" in text for text in said) and any("checks whether" in text for text in said)
    assert record["dropped"]["excluded"] > 0 and record["excluded"][0]["name"] == "q.jsonl"


def test_target_that_never_says_anything_usable_is_given_up(
    tiny: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(make, "FRUITLESS", 10)
    monkeypatch.setattr("draftwood.train.data.dialogue_scripts.SHORTEST", 99)
    with pytest.raises(EngineError, match="empty answer"):
        make_dataset(tiny, tmp_path, SMALL)


def test_few_tokens_still_make_the_least_number_of_dialogues(tiny: Loaded, tmp_path: Path):
    one = make_dataset(tiny, tmp_path / "one", replace(SMALL, tokens=1))
    assert sum(one["lines"].values()) < 5
    some = make_dataset(tiny, tmp_path / "some", replace(SMALL, tokens=1, least=5))
    assert 5 <= some["lines"]["train"] < 12

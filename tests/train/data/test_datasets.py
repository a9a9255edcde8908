"""Several folders are one set: nothing is learned twice, nothing held out is learned, and every record is added up."""

import json
from pathlib import Path
from typing import Any

import pytest

from draftwood.errors import OptionError
from draftwood.models.loading.load import Loaded
from draftwood.train.data import datasets
from tiny_run import write_data

QUESTIONS = {"name": "q.jsonl", "sha256": "aa", "questions": 3}
CODE = {"name": "code.jsonl", "sha256": "bb", "questions": 1}


def folder(place: Path, tiny: Loaded, seed: int, **record: Any) -> Path:
    write_data(place, seed=seed)
    about = {
        "target": {"name": tiny.name, "fingerprint": tiny.fingerprint},
        "seed": seed,
        "excluded": [QUESTIONS],
        "lines": {"train": 24, "heldout": 4},
        "kinds": {"chat": {"dialogues": 28, "prompt_tokens": 100, "answer_tokens": 500}},
        "dropped": {"duplicate": 2},
        "answer_tokens": 500,
        "seconds": 1.5,
    }
    (place / "record.json").write_text(json.dumps({**about, **record}))
    return place


def test_folders_are_read_as_one_set_in_their_order(tiny: Loaded, tmp_path: Path) -> None:
    paths = [folder(tmp_path / name, tiny, seed) for name, seed in (("a", 0), ("b", 10))]
    train, held, complaints = datasets.read(paths, tiny)
    alone = [datasets.read([path], tiny) for path in paths]
    assert [d.tokens.tolist() for d in train] == [d.tokens.tolist() for a in alone for d in a[0]]
    assert [d.tokens.tolist() for d in held] == [d.tokens.tolist() for a in alone for d in a[1]]
    assert not complaints and len(train) == 48 and len(held) == 8


def test_known_prompt_is_left_out_and_so_is_one_held_out_elsewhere(tiny: Loaded, tmp_path: Path) -> None:
    first, second = folder(tmp_path / "a", tiny, 0), folder(tmp_path / "b", tiny, 10)
    known = (first / "train.jsonl").read_text().splitlines()[3]
    held = (first / "heldout.jsonl").read_text().splitlines()[0]
    with (second / "train.jsonl").open("a") as file:
        file.write(f"{known}\n{held}\n")
    train, _, (complaint,) = datasets.read([first, second], tiny)
    assert len(train) == 48 and "2 of 26 dialogues occur in another folder" in complaint
    assert len(datasets.read([second], tiny)[0]) == 26, "a twin: alone, it is read as it is"


def test_records_are_added_up(tiny: Loaded, tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "kinds": {"chat": {"dialogues": 2}, "math": {"dialogues": 1}},
        "dropped": {"duplicate": 1, "excluded": 9},
        "excluded": [CODE, QUESTIONS],
        "seconds": 2.25,
    }
    paths = [folder(tmp_path / "a", tiny, 0), folder(tmp_path / "b", tiny, 10, **more)]
    found = datasets.summed(paths)
    assert found["kinds"] == {
        "chat": {"dialogues": 30, "prompt_tokens": 100, "answer_tokens": 500},
        "math": {"dialogues": 1},
    }
    assert found["lines"] == {"train": 48, "heldout": 8} and found["dropped"] == {"duplicate": 3, "excluded": 9}
    assert found["answer_tokens"] == 1000 and found["seconds"] == 3.8
    assert [(f["name"], f["seed"]) for f in found["folders"]] == [("a", 0), ("b", 10)]
    assert found["target"]["fingerprint"] == tiny.fingerprint and not found["without_record"]


def test_questions_count_as_excluded_only_where_every_folder_excluded_them(tiny: Loaded, tmp_path: Path) -> None:
    paths = [folder(tmp_path / "a", tiny, 0), folder(tmp_path / "b", tiny, 10, excluded=[CODE, QUESTIONS])]
    found = datasets.summed(paths)
    assert found["excluded"] == [QUESTIONS] and found["excluded_in_part"] == [{**CODE, "folders": 1}]
    bare = write_data(tmp_path / "c", seed=20)
    found = datasets.summed([*paths, bare])
    assert not found["excluded"] and found["without_record"] == 1, "nobody knows what is in it"
    assert datasets.summed([bare]) == {}


def test_folder_of_another_target_is_refused_by_name(tiny: Loaded, tmp_path: Path) -> None:
    mine = folder(tmp_path / "a", tiny, 0)
    other = folder(tmp_path / "b", tiny, 10, target={"name": "llama", "fingerprint": "beef"})
    for paths in ([mine, other], [other]):
        with pytest.raises(OptionError, match=r"(?s)b was written by llama \(beef\), not by .*hint: .*train data"):
            datasets.read(paths, tiny)
    train, held, _ = datasets.read([mine, other / "train.jsonl"], tiny)
    assert len(train) + len(held) == 52, "a file by itself is taken from anybody"


def test_few_held_out_ones_are_joined_by_the_last_of_the_others(tiny: Loaded, tmp_path: Path) -> None:
    """What is looked at is not learned from, unless there is hardly anything."""
    one, other = folder(tmp_path / "a", tiny, 0), folder(tmp_path / "b", tiny, 10)
    for paths, sizes in (([one, other], (48, 8)), ([one, other / "train.jsonl"], (44, 8)), ([one], (24, 4))):
        train, held, _ = datasets.read(paths, tiny)
        assert (len(train), len(held)) == sizes
        assert not {d.tokens.tobytes() for d in train} & {d.tokens.tobytes() for d in held}
    train, held, _ = datasets.read([one / "train.jsonl"], tiny)
    assert held is train and len(train) == 24


@pytest.mark.parametrize("wrong", [{"answer_tokens": "many"}, {"excluded": [{"name": "q"}]}, {"kinds": [1]}])
def test_record_that_cannot_be_added_up_is_refused(tiny: Loaded, tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"(?s)a/record.json: not a record of training data.*hint: remove it"):
        datasets.summed([folder(tmp_path / "a", tiny, 0, **wrong)])


def test_folder_named_twice_is_refused(tiny: Loaded, tmp_path: Path) -> None:
    mine = folder(tmp_path / "a", tiny, 0)
    with pytest.raises(OptionError, match="is given twice"):
        datasets.read([mine, tmp_path / "b" / ".." / "a"], tiny)


def test_held_out_file_of_broken_lines_alone_is_reported_and_left_out(tiny: Loaded, tmp_path: Path) -> None:
    place = folder(tmp_path / "a", tiny, 0)
    (place / "heldout.jsonl").write_text("no dialogue\n")
    train, held, complaints = datasets.read([place], tiny)
    assert len(train) and len(held), "some of the others are looked at"
    assert any("heldout.jsonl" in said for said in complaints)
    (place / "train.jsonl").write_text("no dialogue\n")
    with pytest.raises(OptionError, match=r"train\.jsonl"):  # a twin: without anything to learn from there is no run
        datasets.read([place], tiny)

"""A folder belongs to one target, one seed and one set of excluded questions; nobody else writes into it."""

import json
from pathlib import Path

import pytest

from draftwood.errors import OptionError
from draftwood.train.data.dataset_folder import Folder, Line, Outcome
from draftwood.train.data.dialogues import HELDOUT, RECORD, TRAIN

MINE = {"target": {"name": "a", "fingerprint": "1"}, "seed": 0, "excluded": ()}


def outcome(*keys: str, held: bool = False) -> Outcome:
    lines = [Line("chat", [1, 2, 3], [(1, 3)], key) for key in keys]
    return Outcome(keys[0], held, lines)


@pytest.fixture
def used(tmp_path: Path) -> Path:
    with Folder(tmp_path, MINE, {}).open() as folder:
        for each in (outcome("a"), outcome("b", "c"), outcome("d", held=True)):
            folder.add(each)
        folder.save()
    return tmp_path


def test_held_out_lines_are_in_a_file_of_their_own(used: Path):
    keys = {
        name: [json.loads(line)["key"] for line in (used / name).read_text().splitlines()] for name in (TRAIN, HELDOUT)
    }
    assert keys == {TRAIN: ["a", "b", "c"], HELDOUT: ["d"]}


def test_what_follows_a_duplicate_is_dropped_with_it(used: Path):
    with Folder(used, MINE, {"batch": 3}).open() as folder:
        assert folder.totals.next == 3 and folder.totals.answer_tokens == 8
        folder.add(outcome("a", "e"))
        folder.add(outcome("f", "d", "g"))
        folder.save()
        assert folder.totals.dropped == {"duplicate": 2}
    keys = [json.loads(line)["key"] for line in (used / TRAIN).read_text().splitlines()]
    assert keys == ["a", "b", "c", "f"]


def test_what_was_not_saved_is_made_again(used: Path):
    with (used / TRAIN).open("ab") as file:
        file.write(b'{"key": "x"}\n{"to')
    with Folder(used, MINE, {}).open() as folder:
        assert folder.seen == {"a", "b", "c", "d"}
    assert len((used / TRAIN).read_text().splitlines()) == 3


@pytest.mark.parametrize(
    "change",
    [{"target": {"name": "a", "fingerprint": "2"}}, {"seed": 1}, {"excluded": ({"name": "q", "sha256": "0"},)}],
)
def test_other_run_is_refused_with_a_hint(used: Path, change):
    before = (used / TRAIN).read_bytes()
    with pytest.raises(OptionError, match=r"(?s)another run.*was.*now.*hint:"), Folder(used, MINE | change, {}).open():
        pass
    assert (used / TRAIN).read_bytes() == before


def test_second_writer_is_refused(used: Path):
    with (
        Folder(used, MINE, {}).open(),
        pytest.raises(OptionError, match="another run is writing"),
        Folder(used, MINE, {}).open(),
    ):
        pass


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["bytes"].update({"../victim.txt": 0}),
        lambda r: r["bytes"].clear(),
        lambda r: r.update(next="x"),
        lambda r: r.update(answer_tokens=-1),
        lambda r: r["kinds"].update(question={}),
    ],
)
def test_wrong_record_is_refused_and_truncates_nothing(used: Path, change):
    victim = used.parent / "victim.txt"
    victim.write_text("precious")
    record = json.loads((used / RECORD).read_text())
    change(record)
    (used / RECORD).write_text(json.dumps(record))
    with pytest.raises(OptionError, match="is not a record of training data"), Folder(used, MINE, {}).open():
        pass
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("spoil", ["record", "short", "bare"])
def test_folder_that_makes_no_sense_is_refused(used: Path, spoil: str):
    if spoil == "record":
        (used / RECORD).write_text("[]")
    elif spoil == "short":
        (used / TRAIN).write_text("")
    else:
        (used / RECORD).unlink()
    with pytest.raises(OptionError, match="hint:"), Folder(used, MINE, {}).open():
        pass

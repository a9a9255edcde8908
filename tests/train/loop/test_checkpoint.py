"""A checkpoint is whole or not there, holds numbers and no code, and belongs to one run."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftwood.errors import TrainError
from draftwood.train.loop import checkpoint

NOTE = {"step": 3, "steps": 9, "tokens": 70, "seconds": 1.5, "identity": {"data": "a", "seed": "0"}}
TENSORS = {"weights/one/w": torch.arange(6.0).view(2, 3), "moments/one@0/g/0/step": torch.tensor(3.0)}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert checkpoint.read(tmp_path) is None
    checkpoint.write(tmp_path / "new", TENSORS, NOTE)
    found = checkpoint.read(tmp_path / "new")
    assert found is not None and found[1] == NOTE
    assert all(torch.equal(found[0][name], t) for name, t in TENSORS.items())


def damaged(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[:-9])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "pickle":
        path.write_bytes(pickle.dumps({"a": 1}))
    elif how == "no note":
        save_file(dict(TENSORS), path)
    elif how == "note of another kind":
        save_file(dict(TENSORS), path, metadata={"note": '{"step": "many"}'})
    elif how == "header":
        path.write_bytes(b"\xff" * 8 + data[8:])


@pytest.mark.parametrize("how", ["truncated", "empty", "pickle", "no note", "note of another kind", "header"])
def test_damaged_one_is_refused_with_its_name(tmp_path: Path, how: str) -> None:
    checkpoint.write(tmp_path, TENSORS, NOTE)
    damaged(tmp_path / checkpoint.FILE, how)
    with pytest.raises(TrainError, match=rf"(?s){checkpoint.FILE} is not a checkpoint.*hint: delete it"):
        checkpoint.read(tmp_path)


@pytest.mark.slow
def test_full_disk_leaves_the_last_good_one(tmp_path: Path) -> None:
    """A process that may write no file longer than a few kilobytes, as on a disk that is full."""
    checkpoint.write(tmp_path, TENSORS, NOTE)
    before = (tmp_path / checkpoint.FILE).read_bytes()
    code = (
        "import resource, sys, torch; from pathlib import Path; from draftwood.train.loop import checkpoint\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "checkpoint.write(Path(sys.argv[1]), {'weights/x': torch.zeros(5000)}, {})"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "could not be written: File too large" in done.stderr and "the previous version was kept" in done.stderr
    assert (tmp_path / checkpoint.FILE).read_bytes() == before and checkpoint.read(tmp_path) is not None
    assert [p.name for p in tmp_path.iterdir()] == [checkpoint.FILE], "nothing half written is left"


def test_failing_sync_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(TrainError, match=r"(?s)No space left on device.*there was no previous version"):
        checkpoint.write(tmp_path, TENSORS, NOTE)
    assert not list(tmp_path.iterdir())


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainError, match="cannot be made"):
        checkpoint.write(tmp_path / "file" / "checkpoint", TENSORS, NOTE)


def test_run_is_known_by_what_it_was_asked(tmp_path: Path) -> None:
    checkpoint.same_run(tmp_path, NOTE, {"data": "a", "seed": "0"}, 9)
    checkpoint.same_run(tmp_path, NOTE, {"data": "a", "seed": "0"}, None)
    with pytest.raises(TrainError, match=r"(?s)holds another run: data was a, now it is b.*hint: another --out"):
        checkpoint.same_run(tmp_path, NOTE, {"data": "b", "seed": "0"}, None)
    with pytest.raises(TrainError, match="draft-vocab-size was nothing, now it is 5"):
        checkpoint.same_run(tmp_path, NOTE, {"data": "a", "seed": "0", "draft-vocab-size": "5"}, None)
    with pytest.raises(TrainError, match=r"(?s)a run of 9 steps, not 8.*leave out --steps"):
        checkpoint.same_run(tmp_path, NOTE, {"data": "a", "seed": "0"}, 8)


def test_weights_of_other_shapes_are_refused_before_any_is_changed(tmp_path: Path) -> None:
    mine = {"one/w": torch.zeros(2, 3), "one/v": torch.zeros(4)}
    with pytest.raises(TrainError, match=r"holds no one/v"):
        checkpoint.load_weights(tmp_path, TENSORS, mine)
    with pytest.raises(TrainError, match=r"holds a \[1\] one/v, this run's is \[4\]"):  # it would broadcast
        checkpoint.load_weights(tmp_path, {**TENSORS, "weights/one/v": torch.ones(1)}, mine)
    assert not mine["one/w"].any()
    checkpoint.load_weights(tmp_path, {**TENSORS, "weights/one/v": torch.ones(4)}, mine)
    assert torch.equal(mine["one/w"], TENSORS["weights/one/w"])


def test_temporary_files_of_killed_runs_are_removed(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, TENSORS, NOTE)
    (tmp_path / f"{checkpoint.FILE}.77.tmp").write_bytes(b"half")
    (tmp_path / "my notes.tmp").write_text("precious")
    (tmp_path / "dir.safetensors.7.tmp").mkdir()
    checkpoint.remove_temporary(tmp_path)
    left = {checkpoint.FILE, "my notes.tmp", "dir.safetensors.7.tmp"}
    assert {p.name for p in tmp_path.iterdir()} == left, "what no run wrote stays"


def test_tensors_with_nan_or_infinity_are_named() -> None:
    odd = {
        "a": torch.ones(2),
        "b": torch.tensor([1.0, torch.inf]),
        "c": torch.tensor([torch.nan]),
        "d": torch.tensor([1]),
    }
    assert checkpoint.not_finite(odd) == ["b", "c"]


def test_identity_of_an_older_version_is_the_same_run(tmp_path: Path) -> None:
    """Older checkpoints call the size of the draft vocabulary `rows`."""
    note = {"steps": 9, "identity": {"data": "a", "rows": "64"}}
    checkpoint.same_run(tmp_path, note, {"data": "a", "draft-vocab-size": "64"}, None)
    with pytest.raises(TrainError, match="draft-vocab-size was 64, now it is 65"):
        checkpoint.same_run(tmp_path, note, {"data": "a", "draft-vocab-size": "65"}, None)

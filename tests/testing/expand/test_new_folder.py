"""A new folder is complete or absent."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from filelock import FileLock

from draftwood.errors import OptionError
from draftwood.testing.expand.new_folder import new_folder

KILLED = """
import os, signal, sys
from pathlib import Path
from draftwood.testing.expand.new_folder import new_folder
with new_folder(Path(sys.argv[1]), 1) as folder:
    (folder / "half").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_appears_when_it_is_complete(tmp_path: Path) -> None:
    out = tmp_path / "new"
    with new_folder(out, 1) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("x")
        assert not out.exists() and folder.parent == tmp_path
    assert names(tmp_path) == ["new"] and (out / "inner" / "file").read_text() == "x"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OptionError("no"), ZeroDivisionError])
def test_nothing_is_left_after_an_error(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(BaseException) as caught, new_folder(tmp_path / "new", 1) as folder:
        (folder / "file").write_text("x")
        raise error
    assert names(tmp_path) == [] and caught.type in (KeyboardInterrupt, OptionError, ZeroDivisionError)


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
def test_after_a_kill_there_is_no_folder_and_the_next_run_begins_anew(tmp_path: Path) -> None:
    out = tmp_path / "new"
    done = subprocess.run([sys.executable, "-c", KILLED, str(out)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not out.exists() and names(tmp_path / "new.partial") == ["half"]
    with new_folder(out, 1) as folder:
        assert names(folder) == []
        (folder / "whole").write_text("x")
    assert names(tmp_path) == ["new"] and names(out) == ["whole"]


def test_what_cannot_be_written_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "file").write_text("")
    for out, said in (
        (tmp_path / "old", "exists already"),
        (tmp_path / "file", "exists already"),
        (tmp_path / "none" / "new", "cannot be written: there is no folder"),
        (tmp_path / "file" / "new", "cannot be written: there is no folder"),
        (tmp_path / ("n" * 300), "cannot be written: File name too long"),
    ):
        with pytest.raises(OptionError, match=said), new_folder(out, 1):
            pytest.fail("it was begun")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("Usage", "total used free")(9e9, 7e9, 2e9))
    with (
        pytest.raises(OptionError, match=r"new needs 16\.1 GB, its disk has 2\.0 GB left"),
        new_folder(tmp_path / "new", 16_100_000_000),
    ):
        pytest.fail("it was begun")
    assert names(tmp_path) == ["file", "old"]


def test_two_processes_do_not_write_the_same_folder(tmp_path: Path) -> None:
    with FileLock(tmp_path / "new.partial.lock"):
        (tmp_path / "new.partial").mkdir()
        with pytest.raises(OptionError, match="another process is writing"), new_folder(tmp_path / "new", 1):
            pytest.fail("it was begun")
        assert (tmp_path / "new.partial").is_dir()


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="its disk is full"), new_folder(tmp_path / "new", 1):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert names(tmp_path) == []

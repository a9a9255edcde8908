import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from draftwood.errors import ModelError, WeightsError
from draftwood.models.loading import folder_cache

SLOW_BUILD = """
import sys, time
from pathlib import Path
from draftwood.models.loading import folder_cache

def make(folder):
    (folder / "data").write_bytes(b"half")
    print("making", flush=True)
    with open(sys.argv[1], "a") as log:
        log.write("made\\n")
    time.sleep(float(sys.argv[2]))
    (folder / "data").write_bytes(b"whole")

folder = folder_cache.build("key", make)
print((folder / "data").read_text(), flush=True)
"""


def whole(folder: Path) -> None:
    (folder / "data").write_bytes(b"whole")


def never(folder: Path) -> None:
    raise AssertionError("made again")


def names(cache: Path) -> set[str]:
    """What lies in the cache, lock files aside."""
    return {path.name for path in (cache / "models").iterdir() if path.suffix != ".lock"}


@pytest.fixture
def start(tmp_path: Path, child_env) -> Callable[[float], "subprocess.Popen[str]"]:
    def start(seconds: float) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", SLOW_BUILD, str(tmp_path / "log"), str(seconds)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_env())

    return start


def test_cache_lies_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "mine"))
    assert folder_cache.cache_dir() == tmp_path / "mine"
    monkeypatch.setenv("DRAFTWOOD_CACHE", "~/mine")
    assert folder_cache.cache_dir() == Path.home() / "mine"


@pytest.mark.skipif(sys.platform != "linux", reason="the XDG rule")
@pytest.mark.parametrize(
    ("chosen", "place"),
    [("/xdg", "/xdg/draftwood"), ("relative", "~/.cache/draftwood"), (None, "~/.cache/draftwood")],
)
def test_cache_lies_where_the_platform_says(monkeypatch: pytest.MonkeyPatch, chosen, place):
    for name in ("DRAFTWOOD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if chosen:
        monkeypatch.setenv("XDG_CACHE_HOME", chosen)
    assert folder_cache.cache_dir() == Path(place).expanduser()


def test_finished_folder_is_made_once(cache: Path):
    folder = folder_cache.build("key", whole)
    assert (folder / "data").read_bytes() == b"whole"
    assert folder_cache.build("key", never) == folder
    assert folder_cache.build("other", whole) != folder


def flip(folder: Path) -> None:
    (folder / "data").write_bytes(b"whale")


def cut(folder: Path) -> None:
    (folder / "data").write_bytes(b"who")


def lose(folder: Path) -> None:
    (folder / "data").unlink()


def blank_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("")


def odd_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text(json.dumps({"files": {"data": 3}}))


@pytest.mark.parametrize("damage", [flip, cut, lose, blank_manifest, odd_manifest])
def test_damaged_folder_is_made_again(cache: Path, damage: Callable[[Path], None]):
    folder = folder_cache.build("key", whole)
    damage(folder)
    assert not folder_cache.is_intact(folder)
    assert (folder_cache.build("key", whole) / "data").read_bytes() == b"whole"
    assert folder_cache.is_intact(folder)
    assert names(cache) == {"key"}


def large(folder: Path) -> None:
    (folder / "data").write_bytes(bytes(3_000_000))


def test_large_file_is_judged_by_size_time_stamp_and_samples(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folder_cache, "FULL_HASH_BYTES", 0)
    monkeypatch.setattr(folder_cache, "sha256", lambda path: pytest.fail("the whole file was read"))
    folder = folder_cache.build("key", large)
    assert folder_cache.is_intact(folder)
    data = folder / "data"
    stamp = data.stat().st_mtime_ns
    os.utime(data, ns=(1, 1))
    assert not folder_cache.is_intact(folder), "another time stamp"
    os.utime(data, ns=(stamp, stamp))
    assert folder_cache.is_intact(folder)
    with data.open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"\1" * 100_000)  # a stretch, as a lost page of the disk leaves
    os.utime(data, ns=(stamp, stamp))
    assert not folder_cache.is_intact(folder), "samples differ"


def test_two_first_starts_at_once_make_it_once(cache: Path, tmp_path: Path, start):
    both = [start(0.5) for _ in range(2)]
    said = [process.communicate(timeout=30)[0] for process in both]
    assert all(text.endswith("whole\n") for text in said)
    assert (tmp_path / "log").read_text() == "made\n"
    assert names(cache) == {"key"}


def test_two_threads_at_once_make_it_once(cache: Path):
    made: list[str] = []

    def make(folder: Path) -> None:
        made.append(threading.current_thread().name)
        time.sleep(0.2)
        whole(folder)

    both = [threading.Thread(target=folder_cache.build, args=("key", make)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len(made) == 1 and names(cache) == {"key"}


def test_a_kill_in_the_middle_leaves_nothing_broken(cache: Path, start):
    with start(60) as process:
        assert process.stdout is not None and process.stdout.readline() == "making\n"
        process.kill()
        process.wait()
    assert names(cache) == {"key.partial"}
    assert (cache / "models" / "key.partial" / "data").read_bytes() == b"half"
    assert (folder_cache.build("key", whole) / "data").read_bytes() == b"whole"
    assert names(cache) == {"key"}


def test_what_was_left_of_another_model_is_swept_too_unless_it_is_being_made(cache: Path, start):
    folder_cache.build("first", whole)
    (cache / "models" / "dead.partial").mkdir()
    with start(60) as process:
        assert process.stdout is not None and process.stdout.readline() == "making\n"
        folder_cache.build("second", whole)
        assert names(cache) == {"first", "second", "key.partial"}
        process.kill()


def full_disk(folder: Path) -> None:
    (folder / "data").write_bytes(b"half")
    with open("/dev/full", "wb") as file:
        file.write(b"x")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is always full exists on Linux")
def test_a_full_disk_is_named_and_leaves_nothing(cache: Path):
    with pytest.raises(ModelError, match=r"(?s)no space left.*hint: .*DRAFTWOOD_CACHE"):
        folder_cache.build("key", full_disk)
    assert names(cache) == set()
    assert (folder_cache.build("key", whole) / "data").read_bytes() == b"whole"


@pytest.mark.parametrize("problem", [WeightsError("bad tensor"), KeyboardInterrupt(), OSError(errno.EIO, "disk died")])
def test_a_failed_making_comes_through_and_leaves_nothing(cache: Path, problem: BaseException):
    def fail(folder: Path) -> None:
        whole(folder)
        raise problem

    with pytest.raises(type(problem)) as caught:
        folder_cache.build("key", fail)
    assert caught.value is problem or caught.value.__cause__ is problem
    assert names(cache) == set()


def test_a_cache_that_is_no_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"(?s)cannot be written.*hint: set DRAFTWOOD_CACHE"):
        folder_cache.build("key", whole)

"""What was timed beside busy processes is measured again; what was timed in peace, and what no clock decides, stays."""

import json
from pathlib import Path
from typing import Any

import pytest

from draftwood.sizing import remembered as module
from draftwood.sizing.remembered import TIMES, Timed, remembered, remembered_times
from draftwood.testing.parts.tiny import tiny_runner

TARGET: Any = tiny_runner()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "fingerprint", lambda target: "mark")
    return tmp_path


class Measured:
    """Measurements one after another: each says what it found, and how many cores others took meanwhile."""

    def __init__(self, *found: tuple[int, float | None]) -> None:
        self.left, self.count = list(found), 0

    def __call__(self) -> Timed[int]:
        self.count += 1
        return Timed(*self.left.pop(0))


def start(find: Measured) -> Timed[int]:
    return remembered_times(TARGET, "costs", "key", int, find)


def test_what_was_timed_in_peace_is_measured_once() -> None:
    find = Measured((7, 0.1))
    assert [start(find).found for _ in range(3)] == [7, 7, 7] and find.count == 1
    assert start(find).quiet


def test_what_was_timed_beside_busy_processes_is_measured_again_until_they_are_gone() -> None:
    find = Measured((99, 2.0), (50, 1.0), (7, 0.0))
    assert [start(find).found for _ in range(5)] == [99, 50, 7, 7, 7] and find.count == 3


def test_of_measurements_beside_busy_processes_the_least_disturbed_is_kept_and_after_some_it_stays() -> None:
    find = Measured((50, 1.0), *((99, 2.0),) * 9)
    found = [start(find) for _ in range(8)]
    assert [each.found for each in found] == [50] * 8 and find.count == TIMES
    assert not found[-1].quiet, "it is still known that it may be wrong"


def test_where_nobody_knows_what_others_did_the_first_measurement_stays() -> None:
    find = Measured((7, None))
    assert [start(find).found for _ in range(3)] == [7, 7, 7] and start(find).quiet


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("taken"),  # of a version that did not look
        lambda record: record.update(found="seven"),
        lambda record: record.update(taken="many"),
        lambda record: record.update(measured=None),
    ],
)
def test_a_record_that_does_not_say_how_quiet_it_was_is_made_again(own_cache: Path, change: Any) -> None:
    start(Measured((99, 0.0)))
    (file,) = (own_cache / "costs").iterdir()
    record = json.loads(file.read_text("utf-8"))
    change(record)
    file.write_text(json.dumps(record), "utf-8")
    assert start(Measured((7, 0.0))).found == 7


def test_what_no_clock_decides_is_found_once() -> None:
    found = iter((7, 8))
    assert [remembered(TARGET, "other", "key", int, lambda: next(found)) for _ in range(3)] == [7, 7, 7]


def test_nothing_is_kept_of_targets_that_cannot_be_told_apart(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "fingerprint", lambda target: None)
    find = Measured((7, 0.0), (8, 0.0))
    assert [start(find).found for _ in range(2)] == [7, 8] and not list(own_cache.iterdir())

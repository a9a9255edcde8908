"""A log tells each step once, whatever happened in between."""

from pathlib import Path

import pytest

from draftwood.train.loop.train_log import FILE, Log, draw, read


def step(n: int) -> dict:
    return {"step": n, "tokens": 10 * n, "losses": {"eagle": 1.0 / (n + 1)}}


def measurement(n: int) -> dict:
    return {"step": n, "recipe": "eagle", "tokens_per_pass": 1.0 + n}


def test_log_is_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for entry in (step(0), step(10), measurement(11), step(20), measurement(21)):
        log.add(entry)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"step": 30, "tok')  # a kill in the middle of a line
    again = Log(tmp_path)
    again.reopen(11)
    assert again.entries == read(tmp_path / FILE) == [step(0), step(10), measurement(11)]
    again.add(step(20))
    assert read(tmp_path / FILE) == [step(0), step(10), measurement(11), step(20)] and again.measurements("eagle") == [
        measurement(11)
    ]


def test_step_of_the_checkpoint_is_logged_again_and_its_measurement_is_not(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for entry in (step(9), step(10), measurement(10)):
        log.add(entry)
    log.reopen(10)
    assert log.entries == [step(9), measurement(10)]


def test_no_log_is_an_empty_one(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.reopen(5)
    assert log.entries == [] == read(tmp_path / FILE) and not (tmp_path / FILE).exists()


def test_picture_covers_the_log(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    log = Log(tmp_path)
    log.add({"step": 0, "tokens": 100, "losses": {"eagle2": 3.0, "medusa": 4.0}})
    log.add({"step": 10, "tokens": 900, "losses": {"eagle2": 2.0, "medusa": 3.0}})
    log.add({"step": 11, "recipe": "eagle2", "tokens_per_pass": 1.5})
    log.add({"recipe": "vocab_trim", "stage": "count", "made": {"tokens": 5}})
    with (tmp_path / FILE).open("a") as file:
        file.write("{torn")
    assert draw(tmp_path) == tmp_path / "curves.svg"
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_nothing_to_draw(tmp_path: Path) -> None:
    assert draw(tmp_path) is None
    Log(tmp_path).add({"step": 11, "recipe": "eagle2", "tokens_per_pass": 1.5})
    assert draw(tmp_path) is None

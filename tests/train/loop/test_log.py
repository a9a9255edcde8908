"""A log tells each step once, whatever happened in between."""

from pathlib import Path

from draftwood.train.loop.log import FILE, Log, read


def step(n: int) -> dict:
    return {"step": n, "tokens": 10 * n, "losses": {"eagle": 1.0 / (n + 1)}}


def look(n: int) -> dict:
    return {"step": n, "recipe": "eagle", "tokens_per_pass": 1.0 + n}


def test_log_is_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for entry in (step(0), step(10), look(11), step(20), look(21)):
        log.add(entry)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"step": 30, "tok')  # a kill in the middle of a line
    again = Log(tmp_path)
    again.reopen(11)
    assert again.entries == read(tmp_path / FILE) == [step(0), step(10), look(11)]
    again.add(step(20))
    assert read(tmp_path / FILE) == [step(0), step(10), look(11), step(20)] and again.looks("eagle") == [look(11)]


def test_step_of_the_checkpoint_itself_comes_again_and_a_look_at_it_does_not(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for entry in (step(9), step(10), look(10)):
        log.add(entry)
    log.reopen(10)
    assert log.entries == [step(9), look(10)]


def test_no_log_is_an_empty_one(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.reopen(5)
    assert log.entries == [] == read(tmp_path / FILE) and not (tmp_path / FILE).exists()

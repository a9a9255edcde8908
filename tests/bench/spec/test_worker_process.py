import os

import pytest

from draftwood.bench.spec.peers import Settings
from draftwood.bench.spec.worker_process import LIVES, WorkerDied, WorkerFailed, environment

SETTINGS = Settings("m", 1, 4)
DIE, HANG, FAIL = 902, 903, 901


def ask(process, *prompt: int):
    return process.call("answer", method="m", prompt=list(prompt), index=0)


def test_a_library_that_prints_does_not_disturb_the_protocol(fake):
    process = fake("good")
    assert process.open(SETTINGS)["kind"] == "good"
    assert [ask(process, n)["tokens"] for n in (5, 6)] == [[5, 7, 8], [6, 7, 8]]
    pid = process.pid
    process.close()
    assert not process.alive and pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_failure_is_reported_and_the_worker_keeps_running(fake):
    process = fake("bad")
    process.open(SETTINGS)
    with pytest.raises(WorkerFailed, match="ValueError: out of words"):
        ask(process, FAIL)
    assert ask(process, 5)["emitted"] == 3


def test_a_dead_worker_is_reported_with_its_last_line(fake):
    process = fake("bad")
    process.open(SETTINGS)
    with pytest.raises(WorkerDied, match="died with status 3: last words"):
        ask(process, DIE)
    with pytest.raises(WorkerDied, match="does not run"):
        ask(process, 5)


def test_a_worker_that_hangs_is_ended(fake):
    process = fake("bad", patience=5.0)
    process.open(SETTINGS)
    process.patience = 0.2
    with pytest.raises(WorkerDied, match="no answer within 0 s"):
        ask(process, HANG)
    assert not process.alive


def test_a_worker_that_dies_too_often_is_not_started_again(fake):
    process = fake("bad")
    for _ in range(LIVES):
        process.open(SETTINGS)
        with pytest.raises(WorkerDied, match="status 3"):
            ask(process, DIE)
    with pytest.raises(WorkerDied, match="not started again"):
        process.open(SETTINGS)


def test_a_worker_that_cannot_open_is_not_left_running(fake):
    process = fake("unopened")
    with pytest.raises(WorkerFailed, match="no such model"):
        process.open(SETTINGS)
    assert not process.alive


def test_the_number_of_threads_is_set_for_every_library():
    assert environment(3)["OMP_NUM_THREADS"] == environment(3)["MKL_NUM_THREADS"] == "3"

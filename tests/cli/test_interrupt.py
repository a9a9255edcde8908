"""Ctrl-C is a wish the first time and an order the second."""

import os
import signal
import threading

import pytest

from draftwood.cli.interrupt import until_interrupted


def test_first_one_is_noted_and_the_second_raised():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), until_interrupted() as until:
        os.kill(os.getpid(), signal.SIGINT)
        assert until.wait(5)
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(5)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_get_an_event_and_leave_the_handler_alone():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with until_interrupted() as until:
            seen.append((until.is_set(), signal.getsignal(signal.SIGINT) is before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, True)]

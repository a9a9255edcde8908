"""An interrupt inside a held stretch comes after it; a second one comes at once."""

import os
import signal
import threading

import pytest

from draftwood.engine.interrupt import HeldInterrupt


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_interrupt_is_raised_when_the_stretch_has_ended() -> None:
    before, done = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt):
        with HeldInterrupt():
            interrupt()
            done.append("the rest")
        done.append("never reached")
    assert done == ["the rest"] and signal.getsignal(signal.SIGINT) is before


def test_interrupt_is_raised_where_it_is_asked_for() -> None:
    with pytest.raises(KeyboardInterrupt), HeldInterrupt() as held:
        held.deliver()
        interrupt()
        held.deliver()
        raise AssertionError("unreachable")


def test_second_interrupt_is_not_held() -> None:
    with pytest.raises(KeyboardInterrupt), HeldInterrupt():
        interrupt()
        interrupt()
        raise AssertionError("unreachable")


def test_inner_stretch_hands_it_to_the_outer_one() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), HeldInterrupt():
        with HeldInterrupt():
            interrupt()
        done.append("after the inner one")
    assert done == ["after the inner one"]


def test_handler_of_the_user_is_called_and_may_go_on() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with HeldInterrupt():
            interrupt()
            assert not heard
        assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_ignored_interrupts_stay_ignored_and_other_threads_change_nothing() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with HeldInterrupt():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    seen = []

    def work() -> None:
        with HeldInterrupt():
            seen.append(signal.getsignal(signal.SIGINT) is before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]

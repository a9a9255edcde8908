import io

from draftwood.cli.bench.common.progress import Progress, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(stream: io.StringIO, *steps: tuple[float, int]) -> str:
    times = iter([t for t, _ in steps])
    progress = Progress(stream, clock=lambda: next(times))
    for _, done in steps:
        progress(done, 10)
    return stream.getvalue()


def test_a_file_gets_a_line_now_and_then():
    text = said(io.StringIO(), (0, 0), (10, 1), (20, 2), (31, 3), (40, 4), (100, 10))
    assert text.splitlines() == ["10 questions", "3/10 questions, 72 s left", "10/10 questions"]


def test_a_terminal_sees_every_question_on_one_line():
    text = said(Terminal(), (0, 0), (10, 1), (20, 2))
    assert text == "10 questions\n\r\x1b[K1/10 questions, 2 min left\r\x1b[K2/10 questions, 80 s left"


def test_time_left_is_computed_from_this_run_alone():
    text = said(io.StringIO(), (0, 6), (60, 7))
    assert text.splitlines() == ["10 questions, 6 of them done before", "7/10 questions, 3 min left"]


def test_durations_are_in_seconds_minutes_or_hours():
    assert [duration(s) for s in (5, 89, 120, 7500)] == ["5 s", "89 s", "2 min", "2 h 05 min"]

"""A bar appears for many prompts on a terminal, or when asked for, and only on stderr."""

import io
import sys

import pytest

from draftwood.progress import MANY, progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "total", "wanted", "shown"),
    [
        (Terminal, MANY + 1, None, True),
        (Terminal, MANY, None, False),
        (io.StringIO, 5000, None, False),
        (Terminal, 5000, False, False),
        (Terminal, 2, True, True),
        (io.StringIO, 2, True, True),
    ],
)
def test_bar_is_shown_where_it_helps(monkeypatch, capsys, stream, total, wanted, shown):
    monkeypatch.setenv("TERM", "xterm")
    written = stream()
    monkeypatch.setattr(sys, "stderr", written)
    with progress_bar(total, wanted) as advance:
        advance(1)
        advance(total - 1)
    assert (f"{total}/{total}" in written.getvalue()) == shown
    assert capsys.readouterr().out == ""

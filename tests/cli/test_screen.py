"""Colours where they can be seen, text untouched where they cannot."""

import io
import sys

import pytest

from draftwood.cli.screen import Screen, report, stats_line, table, wants_color
from draftwood.core.request import Stats
from draftwood.results import Piece, Result


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def result(**changes) -> Result:
    answer = {
        "prompt": "p",
        "num_prompt_tokens": 10,
        "text": "a b",
        "token_ids": (1, 2),
        "pieces": (),
        "finish_reason": "stop",
        "error": None,
        "logprobs": None,
        "seed": 0,
        "recipe": "auto",
        "lossless": True,
        "stats": Stats(target_passes=1, cached_tokens=7),
        "seconds": 0.5,
    }
    return Result(**{**answer, **changes})


@pytest.mark.parametrize(
    ("stream", "flag", "env", "colored"),
    [
        (Terminal(), None, {}, True),
        (io.StringIO(), None, {}, False),
        (Terminal(), None, {"NO_COLOR": "1"}, False),
        (Terminal(), None, {"TERM": "dumb"}, False),
        (Terminal(), True, {"NO_COLOR": "1"}, True),
        (io.StringIO(), True, {}, True),
        (Terminal(), False, {}, False),
    ],
)
def test_flag_then_no_color_then_terminal_decide(monkeypatch, stream, flag, env, colored):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert wants_color(stream, flag) is colored


def test_drafted_tokens_have_the_colour_of_their_drafter_and_the_targets_own_have_none(monkeypatch):
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    screen = Screen()
    for text, source in ((" drafted", 0), (" own", -1), (" second", 1), (" sixth", 5)):
        screen.piece(Piece(text, 1, source))
    assert out.getvalue() == "\x1b[32m drafted\x1b[0m own\x1b[36m second\x1b[0m\x1b[32m sixth\x1b[0m"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), "\x1b[32mgreen\x1b[0m"),
        (("NGram",), "\x1b[32mgreen\x1b[0m (NGram)"),
        (("NGram", "Features"), "\x1b[32mgreen\x1b[0m (NGram), \x1b[36mcyan\x1b[0m (Features)"),
    ],
)
def test_legend_names_the_drafter_of_each_colour(monkeypatch, names, said):
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    Screen().legend(names)
    assert out.getvalue() == f"{said}: drafted and accepted; uncoloured: written by the model itself\n"


def test_model_cannot_steer_the_terminal_but_a_file_gets_its_bytes(monkeypatch):
    text = "a\x1b[2Jb\tc\r\nd\x9b1m"
    for stream, expected in ((Terminal(), "a\ufffd[2Jb\tc\ufffd\nd\ufffd1m"), (io.StringIO(), text)):
        monkeypatch.setattr(sys, "stdout", stream)
        Screen().write(text)
        assert stream.getvalue() == expected


def test_table_in_a_file_has_no_codes_and_no_trailing_blanks(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    drawn = table("name", "count", numbers={"count"})
    drawn.add_row("x" * 100, "7")
    Screen().show(drawn)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3 and all(line == line.rstrip() and "\x1b" not in line for line in lines)


def test_stats_line_says_what_a_reader_needs():
    assert stats_line(result()) == "[2 tokens, 4.0 tokens/s, 2.00 tokens per pass, recipe auto]"
    assert "LOSSY" in stats_line(result(lossless=False))
    assert "interrupted" in stats_line(result(finish_reason="cancelled"))
    assert "cut off at max_tokens" in stats_line(result(finish_reason="length", finish_detail="max_tokens"))
    assert "the context is full (12 tokens)" in stats_line(result(finish_reason="length", finish_detail="context"))
    assert "7 of 10 prompt tokens from the cache" in stats_line(result(), cache=True)
    assert "the drafter was disabled (propose: x)" in stats_line(result(stats=Stats(disabled="propose: x")))
    counted = Stats(accepted_prediction_tokens=3, rejected_prediction_tokens=4)
    assert "3 prediction tokens accepted, 4 rejected" in stats_line(result(stats=counted))
    pieces = (Piece("a", 1, -1, "target"), Piece("b", 2, 1, "Features"))
    assert "recipe auto, 1 from Features]" in stats_line(result(pieces=pieces, source_names=("NGram", "Features")))
    assert stats_line(result(pieces=pieces, source_names=("Features",))).endswith("recipe auto]"), "there is no other"
    assert stats_line(result(notes=("it was not used",))).endswith("recipe auto, it was not used]")


def test_error_is_red_only_on_a_terminal(monkeypatch):
    for stream, red in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        report("top_p cannot be 0\nhint: 1")
        assert ("\x1b[31m" in stream.getvalue()) is red
        assert stream.getvalue().endswith("\nhint: 1\n")

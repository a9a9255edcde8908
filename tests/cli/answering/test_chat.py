"""`draftwood chat`: history, commands, and a Ctrl-C that stops an answer and nothing else."""

import os
import pty
import re
import signal

import pytest

from draftwood.cli.answering.chat import Chat
from draftwood.cli.answering.conversation import Talk
from draftwood.cli.screen import Screen
from draftwood.core.sampling.params import SamplingParams

SHORT = ["--max-tokens", "3"]


def test_each_piped_line_is_a_turn_with_the_others_before_it(draftwood):
    done = draftwood("chat", *SHORT, stdin="Name a fruit.\n\nAnother one?\n")
    stats = re.findall(r"(\d+) of (\d+) prompt tokens from the cache", done.stderr)
    assert done.exit_code == 0 and len(stats) == 2 and "\x1b" not in done.stdout
    (_, first), (cached, second) = stats
    assert int(second) > int(first) and int(cached) >= int(first)


def test_reset_forgets_and_the_system_message_stays(draftwood):
    talk = "Hi\n/reset\nHi\n/system You are a cat.\n/system\n/stats\n/nonsense\n/help\n/quit\nnever asked\n"
    done = draftwood("chat", *SHORT, stdin=talk)
    prompts = re.findall(r"of (\d+) prompt tokens from", done.stderr)
    assert len(prompts) == 2 and prompts[0] == prompts[1]
    assert done.stdout.count("system message: You are a cat.") == 2
    assert "2 answers, 6 tokens" in done.stdout and "/reset " in done.stdout
    assert "no such command" in done.stderr and done.exit_code == 0


def test_refused_question_leaves_the_chat_alive(draftwood):
    done = draftwood("chat", *SHORT, stdin=f"{'word ' * 9000}\nHi\n")
    assert "this engine's context" in done.stderr
    assert done.exit_code == 0 and done.stderr.count("tokens per pass") == 1


def test_options_of_sampling_are_those_of_generate_and_reach_the_model(draftwood):
    done = draftwood("chat", *SHORT, "--logprobs", "1", stdin="Hi\n")
    token = re.search(r"^ *(\d+) +'.*' +-\d\.\d+", done.stdout, re.M)
    assert done.exit_code == 0 and token is not None
    banned = draftwood("chat", *SHORT, "--logprobs", "1", "--logit-bias", f"{token[1]}=-inf", stdin="Hi\n")
    other = re.search(r"^ *(\d+) +'.*' +-\d\.\d+", banned.stdout, re.M)
    assert other is not None and other[1] != token[1]


def test_wrong_option_is_refused_before_the_first_word(draftwood, opened):
    assert draftwood("chat", "--top-p", "0", stdin="Hi\n").exit_code == 2 and not opened


def test_interrupt_stops_the_answer_and_keeps_it_in_the_talk(llm, capsys, monkeypatch):
    chat = Chat(Talk(llm), SamplingParams(max_tokens=500, ignore_eos=True), Screen())
    spoken, say = [], Screen.piece

    def interrupted(self, piece) -> None:
        say(self, piece)
        spoken.append(piece)
        if len(spoken) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Screen, "piece", interrupted)
    assert chat.handle("Count to a thousand.") is True
    assert "interrupted]" in capsys.readouterr().err and 3 <= len(spoken) < 500
    assert chat.talk.turns == [("Count to a thousand.", "".join(p.text for p in spoken))]
    chat.params = SamplingParams(max_tokens=2)
    assert chat.handle("Go on.") is True and len(chat.talk.turns) == 2  # the engine is none the worse


@pytest.mark.slow
def test_terminal_chat_survives_ctrl_c_and_ends_with_ctrl_d(start):
    ours, theirs = pty.openpty()
    process = start("chat", "--max-tokens", "400", stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    seen = b""

    def read_until(mark: bytes) -> None:
        nonlocal seen
        while mark not in seen:
            seen += os.read(ours, 4096)
        seen = seen.partition(mark)[2]

    read_until(b"> ")
    os.write(ours, b"Count from one to a hundred.\n")
    read_until(b"hundred.\r\n")
    seen += os.read(ours, 64)
    process.send_signal(signal.SIGINT)
    read_until(b"interrupted]")
    read_until(b"> ")
    os.write(ours, b"\x04")
    assert process.wait(30) == 0
    os.close(ours)

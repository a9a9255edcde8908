"""Questions from everywhere; one bad line spoils no other."""

import io
import sys
from pathlib import Path

import pytest

from draftwood.cli.answering.questions import gather, parse
from draftwood.errors import OptionError


class Input(io.TextIOWrapper):
    def __init__(self, data: bytes, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def test_each_argument_is_a_question_of_its_own():
    assert [q.turns for q in gather(["a", "b c"], None)] == [("a",), ("b c",)]


def test_whole_stdin_is_one_question(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Input("erste Zeile\nzweite ü\n".encode()))
    assert [q.turns for q in gather([], None)] == [("erste Zeile\nzweite ü",)]


def test_lines_of_a_file_are_turns_and_labels(tmp_path):
    file = tmp_path / "q.jsonl"
    file.write_bytes(
        b'\xef\xbb\xbf{"question_id": 1, "category": "x", "turns": ["a", "b"], "more": 2}\r\n\n{"prompt": "c"}'
    )
    first, second = gather([], file)
    assert (first.turns, first.labels) == (("a", "b"), {"question_id": 1, "category": "x"})
    assert (second.turns, second.labels) == (("c",), {})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"nonsense", "line 4: it is not JSON"),
        (b'{"turns": ["a"]', "line 4: it is not JSON"),
        (b"[1]", "no object but a list"),
        (b"{}", 'neither "turns" nor "prompt"'),
        (b'{"turns": []}', "must be a list of texts"),
        (b'{"turns": [1]}', "must be a list of texts"),
        (b'{"turns": "a"}', "must be a list of texts"),
        (b'{"prompt": null}', "must be a list of texts"),
        (b'{"turns": ["a", " "]}', "the prompt is empty"),
        (b'{"prompt": "\\ud800"}', "not valid text"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"prompt": ' + b"9" * 5000 + b"}", "line 4"),
        (b"[" * 100_000, "line 4"),
        (b'{"turns": ["a"], "question_id": 1e999}', "the number 1e999 is too large"),
        (b'{"turns": ["a"], "tenant": ["b"]}', '"tenant" must be a text'),
        (b'{"turns": ["a"], "prediction": 5}', '"prediction" must be a text'),
        (b'{"turns": ["a", "b"], "prediction": "c"}', "a list with a text or null for each turn"),
    ],
)
def test_bad_line_is_a_question_with_an_error(line, said):
    question = parse(line, 4)
    assert said in (question.error or "") and question.turns == ()


def test_bad_question_keeps_its_labels():
    assert parse(b'{"question_id": 7, "turns": []}', 1).labels == {"question_id": 7}


@pytest.mark.parametrize(
    ("prompts", "file", "said"),
    [
        ([""], None, "the prompt is empty"),
        (["  \n"], None, "the prompt is empty"),
        (["\udcff"], None, "not valid text"),
        ([], None, "no prompt"),
        (["a"], Path("b"), "choose one"),
        ([], Path("no/such/file"), "cannot be read: No such file"),
    ],
)
def test_nothing_to_answer_is_refused(monkeypatch, prompts, file, said):
    monkeypatch.setattr(sys, "stdin", Input(b"", terminal=True))
    with pytest.raises(OptionError, match=said):
        gather(prompts, file)


def test_raw_text_may_be_a_blank(monkeypatch):
    assert gather([" "], None, raw=True)[0].turns == (" ",)


def test_file_without_questions_is_refused(tmp_path):
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(OptionError, match="holds no questions"):
        gather([], tmp_path / "empty")

"""Training data is read line by line: broken lines are named and left out, and nothing else is."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

from draftwood.errors import OptionError
from draftwood.models.loading.load import Loaded
from draftwood.train.data.dialogues import HELDOUT, read

GOOD = {"kind": "chat", "tokens": [5, 6, 7, 8], "answers": [[1, 2], [2, 4]]}


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_dialogue_is_read_as_it_was_written(tmp_path, tiny: Loaded):
    found = read(write(tmp_path / "a.jsonl", GOOD, ""), tiny.tokenizer, 258)
    assert len(found) == 1 and found.complaint() is None
    assert found[0].tokens.dtype == np.int32 and found[0].tokens.tolist() == [5, 6, 7, 8]
    assert found[0].answers == ((1, 2), (2, 4)) and found[0].kind == "chat" and found.num_answer_tokens == 3


def test_zipped_file_and_folder_are_read_too(tmp_path, tiny: Loaded):
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(json.dumps(GOOD))
    assert len(read(tmp_path / "a.jsonl.gz", tiny.tokenizer, 258)) == 1
    write(tmp_path / "heldout.jsonl", GOOD, GOOD)
    assert len(read(tmp_path, tiny.tokenizer, 258, split=HELDOUT)) == 2
    with pytest.raises(OptionError, match=r"holds no train\.jsonl"):
        read(tmp_path, tiny.tokenizer, 258)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("3", "not an object"),
        ({"tokens": [], "answers": [[0, 1]]}, "no tokens"),
        ({"tokens": [1, 258], "answers": [[0, 1]]}, "token 258 is not among 258"),
        ({"tokens": [1, -1], "answers": [[0, 1]]}, "token -1"),
        ({"tokens": [1, "2"], "answers": [[0, 1]]}, "integers"),
        ({"tokens": [1, [2]], "answers": [[0, 1]]}, "numbers"),
        ({"tokens": [1, 2.5], "answers": [[0, 1]]}, "integers"),
        ({"tokens": [1, 2]}, "no .answers."),
        ({"tokens": [1, 2], "answers": [[1, 3]]}, "outside"),
        ({"tokens": [1, 2], "answers": [[1, 1]]}, "outside"),
        ({"tokens": [1, 2, 3], "answers": [[1, 3], [2, 3]]}, "outside"),
        ({"tokens": [1, 2], "answers": [1, 2]}, "a pair"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "no .answers."),
        ({"messages": []}, "at least one message"),
        (
            {"messages": [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "\ud800 hi"}]},
            "lone surrogate",
        ),
        ({"messages": [{"role": "assistant", "content": " "}]}, "empty"),
    ],
)
def test_broken_line_is_named_and_the_others_are_read(tmp_path, tiny: Loaded, line, said):
    found = read(write(tmp_path / "a.jsonl", GOOD, line, GOOD), tiny.tokenizer, 258)
    assert len(found) == 2 and found.num_broken == 1
    (number, reason), complaint = found.broken[0], found.complaint()
    assert number == 2 and complaint is not None and "line 2" in complaint
    assert re.search(said, reason), reason


def test_many_broken_lines_are_counted_and_a_few_named(tmp_path, tiny: Loaded):
    found = read(write(tmp_path / "a.jsonl", *["x"] * 9, GOOD), tiny.tokenizer, 258)
    assert found.num_broken == 9 and len(found.broken) == 5
    assert "and 4 more" in (found.complaint() or "")


@pytest.mark.parametrize("lines", [[], [""], ["x", "y"]])
def test_file_without_a_dialogue_is_refused(tmp_path, tiny: Loaded, lines):
    with pytest.raises(OptionError, match="hint: one JSON object a line"):
        read(write(tmp_path / "a.jsonl", *lines), tiny.tokenizer, 258)


def test_missing_file_is_refused(tmp_path, tiny: Loaded):
    with pytest.raises(OptionError, match="cannot be read"):
        read(tmp_path / "none.jsonl", tiny.tokenizer, 258)


def test_spans_of_messages_are_what_the_assistant_said(tmp_path, tiny: Loaded):
    talk = [("user", "say yes"), ("assistant", "yes"), ("user", "yes?"), ("assistant", "yes, näh")]
    line = {"messages": [{"role": role, "content": content} for role, content in talk]}
    found = read(write(tmp_path / "a.jsonl", line), tiny.tokenizer, 258)[0]
    said = [tiny.tokenizer.decode(found.tokens[a:b].tolist()) for a, b in found.answers]
    assert said == ["yes", "yes, näh"]
    whole = tiny.tokenizer.render(line["messages"], add_generation_prompt=False)
    assert tiny.tokenizer.decode(found.tokens.tolist()) == whole


def test_damaged_zip_is_refused(tmp_path, tiny: Loaded):
    whole = bytearray(gzip.compress((json.dumps(GOOD) + "\n").encode() * 500))
    for at in range(20, len(whole) - 20, 7):
        whole[at] ^= 0x5A
    (tmp_path / "a.jsonl.gz").write_bytes(bytes(whole))
    with pytest.raises(OptionError, match="cannot be read"):
        read(tmp_path / "a.jsonl.gz", tiny.tokenizer, 258)

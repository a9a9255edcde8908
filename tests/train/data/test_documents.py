"""Files become documents of token ids: any size of file and line, nothing that is no text, nothing held out."""

import gzip
import json
from pathlib import Path

import pytest

from draftwood.errors import OptionError
from draftwood.models.loading.tokenizer import Tokenizer
from draftwood.testing.folder import write_folder
from draftwood.train.data import documents
from draftwood.train.data.documents import Documents, cut, files_of


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(write_folder(tmp_path_factory.mktemp("model")))


def texts_of(found: Documents) -> list[str]:
    """The documents, decoded."""
    whole, parts = list[str](), list[int]()
    for piece in found.pieces():
        parts += piece.ids.tolist()
        if piece.ends:
            whole.append(found.tokenizer.decode(parts, skip_special=False))
            parts = []
    assert not parts
    return whole


def test_each_file_is_a_document_whatever_its_size(tokenizer: Tokenizer, tmp_path: Path) -> None:
    texts = ["short", "wörds and lines\n" * 40_000, "", "x" * 300_000, "one line " * 50_000]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text, "utf-8")
    read: list[int] = []
    found = Documents(files_of([tmp_path]), tokenizer, read.append)
    assert texts_of(found) == texts and found.skipped == []
    assert sum(read) == sum(len(text.encode()) for text in texts)


def test_a_line_without_end_is_read_in_pieces(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "line.txt").write_text("word " * 400_000)
    pieces = list(Documents([tmp_path / "line.txt"], tokenizer).pieces())
    assert max(len(piece.ids) for piece in pieces) <= 2 * documents.LETTERS and len(pieces) > 20
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]


@pytest.mark.parametrize("text", ["", "abc", "a b\nc d\ne", "   ", "abcdefgh", "\n\n\n"])
def test_pieces_join_to_the_text_and_end_at_lines_or_spaces(text: str) -> None:
    blocks = [text[i : i + 3] for i in range(0, len(text), 3)]
    pieces = list(cut(blocks))
    assert "".join(piece for piece, _ in pieces) == text
    assert [ends for _, ends in pieces] == [False] * (len(pieces) - 1) + [True]
    assert list(cut(["ab cd", "ef\ng", "h"])) == [("ab", False), (" cdef\n", False), ("gh", False), ("", True)]


def test_files_that_are_no_text_are_left_out_whole_and_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("good")
    (tmp_path / "b.txt").write_bytes(b"fine at first " * 200_000 + b"\xff\xfe")
    (tmp_path / "c.txt").write_bytes(b"zero \0 byte")
    (tmp_path / "d.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "e.txt").write_bytes(b"\xef\xbb\xbfmarked\r\nlines")
    found = Documents(files_of([tmp_path]), tokenizer)
    assert texts_of(found) == ["good", "marked\nlines"]
    assert [(file.name, why.partition(":")[0]) for file, why in found.skipped] == [
        ("b.txt", "it is not UTF-8"),
        ("c.txt", "it holds zero bytes, so it is no text"),
        ("d.txt", "it cannot be read"),
    ]


def test_dialogues_are_read_as_training_data_is(tokenizer: Tokenizer, tmp_path: Path) -> None:
    good = {"kind": "chat", "tokens": [104, 105], "answers": [[1, 2]]}
    spoken = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]}
    strange = [b"{}", b"no json", b'{"tokens": [9999], "answers": [[0, 1]]}', b"\xff"]
    lines = [json.dumps(good).encode(), b"", *strange, json.dumps(spoken).encode()]
    (tmp_path / "train.jsonl").write_bytes(b"\n".join(lines))
    with gzip.open(tmp_path / "more.jsonl.gz", "wb") as file:
        file.write(json.dumps(good).encode())
    (tmp_path / "cut.jsonl.gz").write_bytes((tmp_path / "more.jsonl.gz").read_bytes()[:-12])
    found = Documents([tmp_path / name for name in ("train.jsonl", "more.jsonl.gz", "cut.jsonl.gz")], tokenizer)
    pieces = list(found.pieces())
    assert all(piece.ends for piece in pieces)
    assert [piece.ids.tolist() for piece in pieces[::2]] == [[104, 105], [104, 105]]
    assert tokenizer.decode(pieces[1].ids.tolist()).startswith("user: Hi\nassistant: ")
    assert found.num_broken == len(strange) and [file.name for file, _ in found.skipped] == ["cut.jsonl.gz"]


def test_a_line_of_dialogue_without_end_is_no_dialogue(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "LONGEST", 64)
    good = json.dumps({"tokens": [1, 2], "answers": [[0, 1]]})
    (tmp_path / "d.jsonl").write_text("\n".join([good, " " * 200 + good, good]))
    found = Documents([tmp_path / "d.jsonl"], tokenizer)
    assert [piece.ids.tolist() for piece in found.pieces()] == [[1, 2], [1, 2]] and found.num_broken == 0
    (tmp_path / "d.jsonl").write_text("\n".join([good, good + good + good, good]))
    assert len(list(found.pieces())) == 2 and found.num_broken == 1


def test_a_folder_gives_its_texts_and_sources_and_nothing_held_out(tmp_path: Path) -> None:
    wanted = ["README", "a.md", "b/c.py", "b/d.TXT", "b/train.jsonl"]
    for name in (*wanted, "x.png", "y.bin", ".git/z.py", "b/__pycache__/q.py", "b/heldout.jsonl", "LICENSE"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert sorted(str(path.relative_to(tmp_path)) for path in files_of([tmp_path])) == sorted(wanted)
    named = [tmp_path / "y.bin", tmp_path / "b" / "heldout.jsonl"]
    assert files_of([*named, *named]) == named, "whoever names a file gets it, once"
    with pytest.raises(OptionError, match="no such file or folder"):
        files_of([tmp_path / "missing"])

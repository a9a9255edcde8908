"""Passages are readable and of the size that was asked for; what is no text is passed over."""

from pathlib import Path

import pytest

from draftwood.errors import OptionError
from draftwood.models.loading.load import Loaded
from draftwood.train.data.passages import language_of, names_in, read_texts, sentences_in, terms_in

CODE = '''import os

def first(a, b):
    """Adds two numbers that somebody wants to add."""
    total = a + b
    print(total)
    return total

LIMIT = 3

class Second:
    def method(self):
        value = self.other(1, 2, 3)
        return value + LIMIT
'''


def test_prose_is_cut_at_paragraphs(prose: Path, tiny: Loaded):
    found = read_texts([prose], tiny.tokenizer, longest=300)
    whole = {p for file in prose.iterdir() for p in file.read_text().split("\n\n")}
    assert found.num_files == 2 and len(found.passages) > 4
    for passage in found.passages:
        assert set(passage.text.split("\n\n")) <= whole and 60 <= len(passage.text) <= 300
    assert found.names == ("Maria Stone",)
    assert read_texts([prose], tiny.tokenizer, longest=300) == found


def test_code_is_cut_at_definitions(tmp_path: Path, tiny: Loaded):
    (tmp_path / "a.py").write_text(CODE * 2)
    found = [p for p in read_texts([tmp_path], tiny.tokenizer).passages if p.code]
    assert found and all(p.text.startswith(("def first", "class Second")) for p in found)
    assert all("LIMIT = 3" not in p.text and p.language == "Python" for p in found)


def test_what_is_no_text_is_passed_over(prose: Path, tiny: Loaded):
    text = (prose / "one.txt").read_text()
    (prose / "binary.txt").write_bytes(b"\0" + text.encode())
    (prose / "small.txt").write_text("Hi.")
    (prose / "page.html").write_text(text)
    (prose / "table.txt").write_text("a | b | c | 1 | 2\n" * 80)
    (prose / "twice.txt").write_text(text)
    before = sorted(p.text for p in read_texts([prose / "one.txt"], tiny.tokenizer).passages)
    assert before
    seen = "\n\n".join(p.text for p in read_texts([prose], tiny.tokenizer).passages)
    assert seen.count("The bridge number 3 ") <= 1 and "|" not in seen


def test_nothing_to_read_is_refused(tmp_path: Path, tiny: Loaded):
    with pytest.raises(OptionError, match="no such file"):
        read_texts([tmp_path / "none"], tiny.tokenizer)
    with pytest.raises(OptionError, match="no passage can be cut"):
        read_texts([tmp_path], tiny.tokenizer)


def test_words_to_ask_for():
    text = "In May the painter Anna Berg met a sculptor. The sculptor was old. He liked Oslo, and Anna Berg did not."
    assert names_in(text) == ["Anna Berg", "Oslo"] and terms_in(text) == ["Anna Berg", "Oslo", "sculptor"]
    assert sentences_in(text)[0].startswith("In May") and len(sentences_in(text)) == 2


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The house is near the river, and it is not for sale to those who ask for it.", ""),
        ("Das Haus ist nicht am Fluss, und die Frau hat sich auch mit dem Mann gestritten.", "German"),
        ("La maison est dans la rue, avec une porte que les enfants ne voient pas.", "French"),
        ("O menino não está em casa com os pais, e a mãe do amigo também veio.", "Portuguese"),
        ("Photosynthesis: chlorophyll, sunlight, water, sugar.", ""),
        ("", ""),
    ],
)
def test_language_is_told_by_common_words(text: str, language: str):
    assert language_of(text) == language


def test_passages_say_their_language_and_their_file(tmp_path: Path, tiny: Loaded):
    german = "Das Haus Nummer {} ist nicht am Fluss, und die Frau hat sich auch mit dem Mann gestritten."
    english = "The house number {} is not at the river, and the woman has spoken to the man about it."
    for name, text in (("a.txt", german), ("b.txt", english)):
        (tmp_path / name).write_text("\n\n".join(text.format(i) for i in range(30)))
    found = read_texts([tmp_path], tiny.tokenizer, longest=400).passages
    assert {(p.language, p.file) for p in found} in ({("German", 0), ("", 1)}, {("German", 1), ("", 0)})
    for file in (0, 1):
        numbers = [int(p.text.split()[3]) for p in found if p.file == file]
        assert numbers == sorted(numbers), "neighbours stay neighbours"


def test_some_passages_are_long(tmp_path: Path, tiny: Loaded):
    for name in range(30):
        lines = [f"Paragraph {i} of the book number {name} says something that no other says." for i in range(60)]
        (tmp_path / f"{name}.txt").write_text("\n\n".join(lines))
    sizes = [len(p.text) for p in read_texts([tmp_path], tiny.tokenizer, longest=900).passages]
    assert 0.1 < sum(size > 400 for size in sizes) / len(sizes) < 0.6 and max(sizes) <= 900

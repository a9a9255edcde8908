"""draftwood datastore build: from files to a store that the recipe can draft from."""

import io
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest
from typer.testing import CliRunner

from draftwood.cli.main import app
from draftwood.cli.making.datastore_build import Bar
from draftwood.drafters.retrieval.stores.store import Store
from draftwood.models.loading.load import load_tokenizer
from draftwood.testing.folder import write_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"))


def run(model: Path, *words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["datastore", "build", *map(str, words), "--model", str(model)])
    return done.exit_code, done.stdout, done.stderr


def test_texts_become_a_store_and_what_is_none_is_named(model: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("hello hello")
    (texts / "b.py").write_text("x = 1\n")
    (texts / "d.jsonl").write_text(json.dumps({"tokens": [104, 105], "answers": [[0, 1]]}) + "\nnone\n")
    for i in range(7):
        (texts / f"{i}.md").write_bytes(b"\xff\xfe")
    status, said, left_out = run(model, texts, "--out", tmp_path / "new" / "s")
    assert status == 0, left_out
    assert "19 tokens in 3 documents of 3 files" in said and "tokens/s" in said
    assert left_out.count("it is not UTF-8: byte 0xff") == 5 and "left out: 2 more files" in left_out
    assert "left out: 1 lines of .jsonl files that are no dialogues" in left_out
    store = Store.open(tmp_path / "new" / "s")
    store.need_tokenizer(load_tokenizer(str(model)).fingerprint)
    assert store.info.vocab_size == 258 and store.info.model == str(model)
    done = CliRunner().invoke(
        app, ["generate", "hello", "--model", str(model), "--recipe", "rest", "-o", f"store={store.path}", "-n", "4"]
    )
    assert done.exit_code == 0 and "recipe rest" in done.stderr


@pytest.mark.parametrize("content", [b"", b"\xff", None])
def test_files_without_text_make_no_store(model: Path, tmp_path: Path, content: bytes | None) -> None:
    source = tmp_path / "t.txt"
    source.mkdir() if content is None else source.write_bytes(content)
    status, _, error = run(model, source, "--out", tmp_path / "s")
    assert status == 2 and "the files hold no text" in error and "hint: UTF-8 texts" in error
    assert (content != b"\xff") or "left out" in error
    assert not (tmp_path / "s").exists() and not (tmp_path / "s.partial").exists()


def test_mistakes_are_refused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.txt").write_text("text")
    assert "no such file or folder" in run(model, tmp_path / "none", "--out", tmp_path / "s")[2]
    assert "is no datastore" in run(model, tmp_path / "t.txt", "--out", tmp_path / "t.txt")[2]
    assert "--chunk-tokens" in run(model, tmp_path / "t.txt", "--out", tmp_path / "s", "--chunk-tokens", 0)[2]
    monkeypatch.setitem(sys.modules, "pydivsufsort", None)
    status, _, error = run(model, tmp_path / "none", "--out", tmp_path / "s")
    assert status == 2 and "pip install draftwood[datastore]" in error


@pytest.mark.slow
def test_an_interrupted_build_leaves_nothing(model: Path, tmp_path: Path, start: Callable[..., Popen[bytes]]) -> None:
    (tmp_path / "t.txt").write_text("some words " * 8_000_000)
    process = start("datastore", "build", str(tmp_path / "t.txt"), "--model", str(model), "--out", str(tmp_path / "s"))
    while not (tmp_path / "s.partial").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.lock", "t.txt"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal_and_a_line_at_times_elsewhere() -> None:
    terminal = Terminal()
    with Bar(100, terminal) as bar:
        bar.read(50)
        bar.sort(1, 2)
    assert "sorting suffixes" in terminal.getvalue()
    file, times = io.StringIO(), iter([0.0, 1.0, 40.0, 40.0, 41.0])
    with Bar(2_000_000, file, lambda: next(times)) as bar:
        bar.read(500_000)
        bar.read(500_000)
        bar.sort(0, 7)
    assert file.getvalue() == "tokenising: 1.0 of 2.0 MB\n"

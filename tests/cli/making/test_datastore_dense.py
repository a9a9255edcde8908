"""draftwood datastore build --dense: from files to a store that the recipe can draft from."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest
from typer.testing import CliRunner

from draftwood.cli.main import app
from draftwood.drafters.retrieval.stores.dense.store import DenseStore
from draftwood.testing.folder import write_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"))


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [*map(str, words)])
    return done.exit_code, done.stdout, done.stderr


def test_texts_become_a_store_that_is_described_checked_and_drafted_from(model: Path, tmp_path: Path) -> None:
    texts, out = tmp_path / "texts", tmp_path / "new" / "s"
    texts.mkdir()
    (texts / "a.txt").write_text("hello hello")
    (texts / "b.md").write_bytes(b"\xff\xfe")
    (texts / "train.jsonl").write_text(json.dumps({"tokens": [104, 105, 106, 107], "answers": [[1, 4]]}) + "\nnone\n")
    (texts / "heldout.jsonl").write_text(json.dumps({"tokens": [1, 2, 3, 4], "answers": [[1, 4]]}) + "\n")
    status, said, left_out = run("datastore", "build", texts, "--dense", "--model", model, "--out", out)
    assert status == 0, left_out
    assert "11 keys over 14 tokens in 2 texts of 2 files" in said
    assert "it is not UTF-8: byte 0xff" in left_out and "1 lines of .jsonl files that are no dialogues" in left_out
    info = DenseStore.open(out).info
    status, said, _ = run("datastore", "info", out)
    assert status == 0 and "dense, keys 11, tokens 14, texts 2" in said
    assert f"hidden states of {info.target} on {info.backend} of {model}" in said.replace("\n", "")
    assert run("datastore", "check", out)[0] == 0
    status, _, told = run("generate", "hello", "--model", model, "--recipe", "dresd", "-o", f"store={out}", "-n", 4)
    assert status == 0 and "recipe dresd" in told
    status, _, error = run("generate", "hello", "--model", model, "--recipe", "rest", "-o", f"store={out}", "-n", 4)
    assert status == 2 and "is a dense datastore, not a datastore" in error
    whole = out.read_bytes()
    at = info.sections()["keys"][0] + 3
    out.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    status, _, error = run("datastore", "check", out)
    assert status == 2 and "the section keys does not match its checksum" in error


@pytest.mark.parametrize("content", [b"", b"\xff", b"ab"])
def test_files_with_nothing_to_draft_make_no_store(model: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.txt").write_bytes(content)
    status, _, error = run(
        "datastore", "build", tmp_path / "t.txt", "--dense", "--model", model, "--out", tmp_path / "s"
    )
    assert status == 2 and ("the files hold no text" in error or "no text has three tokens" in error)
    assert not (tmp_path / "s").exists() and not (tmp_path / "s.partial").exists()


def test_options_of_the_model_belong_to_dense_stores(model: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("text")
    words = ("datastore", "build", tmp_path / "t.txt", "--model", model, "--out", tmp_path / "s", "--dtype", "float32")
    assert "--dtype and --device are options of --dense" in run(*words)[2]
    assert run(*words, "--dense")[0] == 0
    assert DenseStore.open(tmp_path / "s").info.backend == "float32 float32"


@pytest.mark.slow
def test_an_interrupted_build_leaves_nothing(model: Path, tmp_path: Path, start: Callable[..., Popen[bytes]]) -> None:
    (tmp_path / "t.txt").write_text("some words " * 200_000)
    words = ("--dense", "--model", str(model), "--out", str(tmp_path / "s"))
    process = start("datastore", "build", str(tmp_path / "t.txt"), *words)
    while not (tmp_path / "s.partial").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.lock", "t.txt"]

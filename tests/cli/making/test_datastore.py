"""draftwood datastore info and check: what a store says of itself, and whether its bytes are those that were written."""

from pathlib import Path

from typer.testing import CliRunner

from draftwood.cli.main import app
from small_stores import TOKENIZER, made_store


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["datastore", *map(str, words)])
    return done.exit_code, done.stdout, done.stderr


def test_info_tells_what_a_store_holds(tmp_path: Path) -> None:
    made_store(tmp_path / "s", [[1, 2, 3], [4]], 9)
    status, said, _ = run("info", tmp_path / "s")
    assert status == 0 and "tokens 4, documents 2, chunks 1" in said and f"tokenizer {TOKENIZER}, 9 tokens" in said


def test_check_finds_a_changed_byte(tmp_path: Path) -> None:
    path = tmp_path / "s"
    made_store(path, [[1, 2, 3] * 100])
    assert run("check", path)[:2] == (0, f"{path} is as it was written: 300 tokens\n")
    whole = path.read_bytes()
    for byte in (80, 300, len(whole) // 2):
        path.write_bytes(whole[:byte] + bytes([whole[byte] ^ 1]) + whole[byte + 1 :])
        status, said, error = run("check", path)
        assert (status, said) == (2, "") and "is damaged: " in error and "hint: build it again" in error


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("text")
    for command in ("info", "check"):
        assert run(command, tmp_path / "s")[0] == 2 and "is no datastore" in run(command, tmp_path / "s")[2]
        assert run(command, tmp_path / "none")[0] == 2

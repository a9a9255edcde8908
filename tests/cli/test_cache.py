"""draftwood cache from the command line."""

from pathlib import Path

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from draftwood.cli.cache import size
from draftwood.cli.main import app
from draftwood.models.loading import folder_cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "cache"))
    for name, count in (("one", 3_000_000), ("two", 500)):
        about = {"what": "packed weights", "of": f"/models/{name}.gguf"}

        def fill(folder: Path, size: int = count) -> None:
            (folder / "data").write_bytes(bytes(size))

        folder_cache.build(f"packed-{name}", fill, about=about)
    return tmp_path / "cache"


def run(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["cache", *words])
    assert result.exit_code == status, result.output
    return result.output


def test_entries_are_listed_with_sizes_and_what_they_belong_to(cache: Path):
    said = run()
    assert "2 entries, 3.0 MB" in said
    assert "packed-one\n           packed weights of /models/one.gguf" in said
    assert said.index("packed-one") < said.index("packed-two"), "the largest first"


@pytest.mark.parametrize("name", ["packed-two", "/models/two.gguf", "two.gguf"])
def test_one_entry_is_removed_by_its_name_or_its_file(cache: Path, name: str):
    assert "removed 1 entries" in run("clear", name)
    said = run()
    assert "packed-one" in said and "packed-two" not in said


def test_everything_is_removed(cache: Path):
    (cache / "kernels").mkdir()
    (cache / "models" / "killed.partial").mkdir()
    assert "removed 4 entries" in run("clear")
    assert "0 entries, 0 B" in run()


def test_an_entry_that_is_being_made_stays(cache: Path):
    with FileLock(cache / "models" / "packed-one.lock"):
        said = run("clear")
    assert "packed-one is being made by another process and stays" in said
    assert "packed-one" in run()


def test_an_unknown_name_is_refused(cache: Path):
    assert "unknown cache entry: 'pakced-two'" in run("clear", "pakced-two", status=2)


def test_an_empty_cache_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "nothing"))
    assert "0 entries, 0 B" in run()
    assert "removed 0 entries" in run("clear")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1500, "1.5 kB"), (2_000_000, "2.0 MB"), (5 * 10**9, "5.0 GB")]
)
def test_sizes_read_well(count: int, text: str):
    assert size(count) == text


def test_an_empty_name_removes_nothing(cache: Path):
    result = CliRunner().invoke(app, ["cache", "clear", ""])
    assert result.exit_code != 0 and "2 entries" in run()


def test_what_an_interrupted_removal_left_is_in_nobodys_way(cache: Path):
    left = cache / "models" / "packed-two.damaged-clear.partial"
    left.mkdir()
    (left / "data").write_bytes(b"rest")
    run("clear")
    assert "0 entries" in run()

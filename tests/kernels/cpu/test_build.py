"""A library is compiled once, tried before it is kept, and never half there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftwood.kernels.cpu import build
from draftwood.kernels.cpu.levels import LEVELS, Level

LEVEL = Level("some", ("-msome",), frozenset())
PORTABLE = LEVELS[-1]

# Notes that it was called and leaves a file, as a compiler does.
COMPILER = """#!/bin/sh
echo called >> "$(dirname "$0")/calls"
sleep 0.1
while [ $# -gt 0 ]; do
  if [ "$1" = "-o" ]; then echo library > "$2"; fi
  shift
done
"""
FAILING = """#!/bin/sh
echo "error: no such flag" >&2
exit 1
"""
BUILD = """
import sys
from pathlib import Path
from draftwood.kernels.cpu import build
from draftwood.kernels.cpu.levels import LEVELS, Level
if sys.argv[2] == "fake":
    build.TRY = "pass"
level = Level("some", ("-msome",), frozenset()) if sys.argv[2] == "fake" else LEVELS[-1]
print(build.library(level, Path(sys.argv[1])))
"""


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a script the compiler. Its trial succeeds unless a test says otherwise."""

    def choose(script: str) -> Path:
        path = tmp_path / "bin" / "c++"
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        build.find_compiler.cache_clear()
        return path

    monkeypatch.setattr(build, "TRY", "pass")
    yield choose
    build.find_compiler.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kernels"


def calls(tmp_path: Path) -> int:
    path = tmp_path / "bin" / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_without_a_compiler_there_is_no_library(use, folder, monkeypatch):
    use(COMPILER)
    monkeypatch.setenv("PATH", "")
    for name in ("", "no-such-compiler -O2"):
        monkeypatch.setenv("CXX", name)
        build.find_compiler.cache_clear()
        assert build.library(LEVEL, folder) is None
    assert not folder.exists()


def test_wrong_name_in_cxx_is_told_and_another_compiler_taken(use, monkeypatch, caplog):
    path = use(COMPILER)
    monkeypatch.setenv("PATH", str(path.parent))
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    build.find_compiler.cache_clear()
    assert build.find_compiler() == (str(path),)
    assert "CXX names no program: no-such-compiler" in caplog.text


def test_cxx_may_have_arguments(use, monkeypatch):
    path = use(COMPILER)
    monkeypatch.setenv("CXX", f"{path} -O2 -g")
    build.find_compiler.cache_clear()
    assert build.find_compiler() == (str(path), "-O2", "-g")


def test_library_outlives_its_compiler(use, folder, monkeypatch):
    use(COMPILER)
    path = build.library(LEVEL, folder)
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", "")
    build.find_compiler.cache_clear()
    assert build.find_compiler() is None
    assert build.library(LEVEL, folder) == path is not None


@pytest.mark.parametrize("damage", [lambda b: b[:5], lambda b: b"", lambda b: bytes([b[0] ^ 1]) + b[1:]])
def test_damaged_library_is_made_again(use, folder, tmp_path, damage):
    use(COMPILER)
    path = build.library(LEVEL, folder)
    assert path is not None
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert build.library(LEVEL, folder) == path and path.read_bytes() == whole
    assert calls(tmp_path) == 2


def test_failing_compiler_is_told_and_leaves_nothing(use, folder, caplog):
    use(FAILING)
    assert build.library(LEVEL, folder) is None
    assert "cannot build the some kernels: error: no such flag" in caplog.text
    assert list(folder.iterdir()) == []


def test_compiler_that_never_ends_is_given_up(use, folder, caplog, monkeypatch):
    use("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(build, "TIMEOUT", 0.2)
    assert build.library(LEVEL, folder) is None
    assert "timed out" in caplog.text
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("trial", "status"), [("import sys; sys.exit(1)", "1"), ("import os; os.abort()", "-6"), (build.TRY, "1")]
)
def test_library_that_fails_its_trial_is_not_kept(use, folder, caplog, monkeypatch, trial, status):
    use(COMPILER)
    monkeypatch.setattr(build, "TRY", trial)
    assert build.library(LEVEL, folder) is None
    assert f"the some kernels failed their self-test with status {status}" in caplog.text
    assert list(folder.iterdir()) == []


def test_library_is_compiled_once(use, folder, tmp_path):
    use(COMPILER)
    path = build.library(LEVEL, folder)
    assert path is not None and path.read_bytes().startswith(b"library\n")
    assert build.library(LEVEL, folder) == path and calls(tmp_path) == 1
    assert list(folder.iterdir()) == [path]


def test_whatever_it_is_made_from_is_in_the_name(use, folder, tmp_path, monkeypatch):
    use(COMPILER)
    sources = tmp_path / "source"
    sources.mkdir()
    for source in build.SOURCES.iterdir():
        (sources / source.name).write_bytes(source.read_bytes())
    seen = [build.library(LEVEL, folder)]
    monkeypatch.setattr(build, "SOURCES", sources)
    assert build.library(LEVEL, folder) == seen[0]
    (sources / "activations.hpp").write_text("// other\n")
    seen.append(build.library(LEVEL, folder))
    seen.append(build.library(Level("some", ("-mother",), frozenset()), folder))
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    seen.append(build.library(LEVEL, folder))
    assert None not in seen and len(set(seen)) == 4 == calls(tmp_path)


def test_where_nothing_can_be_kept_kernels_are_made_for_one_process(use, tmp_path, caplog):
    use(COMPILER)
    (tmp_path / "file").write_text("")
    made = build.library(LEVEL, tmp_path / "file" / "kernels")
    assert made is not None and made.exists()
    assert "kernels are compiled for this process only" in caplog.text


def two_at_once(folder: Path, which: str) -> None:
    env = os.environ | {"PYTHONPATH": str(Path(build.__file__).parents[3])}
    run = [sys.executable, "-c", BUILD, str(folder), which]
    both = [subprocess.Popen(run, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {Path(process.communicate(timeout=200)[0].strip()) for process in both}
    assert said == set(folder.iterdir()) and len(said) == 1


def test_two_processes_may_build_at_once(use, folder):
    use(COMPILER)
    two_at_once(folder, "fake")


@pytest.mark.long
@pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler")
def test_real_compiler_makes_a_library_that_passes_its_trial(folder):
    two_at_once(folder, "portable")
    (path,) = folder.iterdir()
    assert subprocess.run([sys.executable, "-c", build.TRY, str(path)]).returncode == 0

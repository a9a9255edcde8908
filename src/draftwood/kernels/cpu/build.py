"""From C++ source to a shared library, once per machine: compiled, tested in a process of its own, then cached.

The file name holds a hash of sources and flags, so changed sources make a new file, and a cached library works without a
compiler. It also holds a checksum of the file, because loading a damaged library would crash the process; a damaged file is
built again. Nothing is appended to it, because macOS signs what its linker writes. A library that crashes or computes wrong
results is not cached, and the next level is tried.
"""

import atexit
import contextlib
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from draftwood.kernels.cpu.levels import Level

SOURCES = Path(__file__).parent / "source"
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared", "-pthread", "-ffp-contract=off", "-fno-math-errno", "-w")
TRY = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).draftwood_try())"
TIMEOUT = 300  # seconds for the compiler, which is slow on a loaded machine

log = logging.getLogger("draftwood")


def library(level: Level, folder: Path) -> Path | None:
    """The compiled library of a level, built in `folder` if missing; None where that is not possible."""
    name = f"{level.name}-{_fingerprint(level)}"
    kept = _kept(folder, name)
    if kept is not None:
        return kept
    compiler = find_compiler()
    if compiler is None:
        return None
    try:
        return _make(compiler, level, _writable(folder), name)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("the %s kernels could not be built: %s", level.name, error)
        return None


def _writable(folder: Path) -> Path:
    """The folder, or a temporary one for this process if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        log.warning("kernels are compiled for this process only: %s", error)
        private = Path(tempfile.mkdtemp(prefix="draftwood-"))
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        return private


def _make(compiler: tuple[str, ...], level: Level, folder: Path, name: str) -> Path | None:
    # Two processes may build at once: each writes its own file, and of the same bytes the last rename wins.
    handle, temporary = tempfile.mkstemp(prefix=f".{level.name}-", suffix=".so", dir=folder)
    os.close(handle)
    fresh = Path(temporary)
    try:
        sources = map(str, sorted(SOURCES.glob("*.cpp")))
        command = [*compiler, *FLAGS, *level.flags, *sources, "-o", str(fresh)]
        made = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        if made.returncode:
            why = made.stderr.strip()[-500:] or f"exit status {made.returncode} without a message"
            log.warning("%s cannot build the %s kernels: %s", " ".join(compiler), level.name, why)
            return None
        tried = subprocess.run([sys.executable, "-I", "-S", "-c", TRY, str(fresh)], capture_output=True, timeout=60)
        if tried.returncode:
            log.warning("the %s kernels failed their self-test with status %d", level.name, tried.returncode)
            return None
        _flush(fresh)
        return fresh.replace(folder / f"{name}-{_checksum(fresh)}.so")
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Write everything to disk before the rename."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def _kept(folder: Path, name: str) -> Path | None:
    """A finished library whose bytes are those that its name promises."""
    for path in sorted(folder.glob(f"{name}-*.so")):
        with contextlib.suppress(OSError):
            if path.stem == f"{name}-{_checksum(path)}":
                return path
    return None


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


@cache
def find_compiler() -> tuple[str, ...] | None:
    """$CXX with its arguments, else the first C++ compiler on the path."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen and shutil.which(chosen[0]) is None:
        log.warning("CXX names no program: %s", chosen[0])
        chosen = []
    for name, *arguments in [chosen] if chosen else [["g++"], ["clang++"], ["c++"]]:
        found = shutil.which(name)
        if found:
            return found, *arguments
    return None


def _fingerprint(level: Level) -> str:
    digest = hashlib.sha256(repr((FLAGS, level.flags)).encode())
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in (".hpp", ".cpp"):
            digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]

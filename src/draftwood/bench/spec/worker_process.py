"""WorkerProcess: the parent's handle of a worker. Starts it, calls it, detects when it dies or hangs, and ends it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic
from typing import IO, Any

from draftwood.bench.spec.peers import Settings
from draftwood.errors import DraftwoodError

PATIENCE = 600.0  # seconds for one reply
LIVES = 3  # starts before a worker is given up


class WorkerFailed(DraftwoodError):
    """The worker replied with an error, whose text this is."""


class WorkerDied(WorkerFailed):
    """The worker has exited, or was ended because it did not reply."""


class WorkerProcess:
    """One worker. `command` replaces the module that is run, for tests."""

    def __init__(self, peer: str, *, command: Sequence[str] | None = None, patience: float = PATIENCE) -> None:
        self.peer, self.patience = peer, patience
        self.command = list(command or (sys.executable, "-m", "draftwood.bench.spec.worker_main", peer))
        self.facts: dict[str, Any] = {}
        self.starts = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None  # and stdout of its libraries
        self._last_line = ""
        self._rest = b""

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None and self.alive else None

    def open(self, settings: Settings) -> dict[str, Any]:
        """Start the worker and load its model. A worker that died too often is not started again."""
        if self.starts >= LIVES:
            raise WorkerDied(f"{self.peer} died {self.starts} times and was not started again")
        self.starts += 1
        self._rest = b""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed with the child
        self._child = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment(settings.threads),
        )
        try:
            self.facts = self.call("open", settings=asdict(settings))
        except WorkerFailed:
            self.close(now=True)
            raise
        return self.facts

    def call(self, op: str, **asked: Any) -> dict[str, Any]:
        """Send one request and wait for its reply. WorkerFailed with the worker's error, WorkerDied if it does not run."""
        child = self._child
        if child is None or child.stdin is None or child.stdin.closed:
            raise WorkerDied(f"{self.peer} does not run")
        try:
            child.stdin.write(json.dumps({"op": op, **asked}).encode() + b"\n")
            child.stdin.flush()
        except OSError:
            raise self._dead() from None
        said = json.loads(self._line())
        if "error" in said:
            raise WorkerFailed(said["error"])
        return said["ok"]

    def _line(self) -> bytes:
        assert self._child is not None and self._child.stdout is not None
        pipe = self._child.stdout.fileno()
        end = monotonic() + self.patience
        while b"\n" not in self._rest:
            if not wait([pipe], max(0.0, end - monotonic())):
                self.close(now=True)
                raise WorkerDied(f"{self.peer} gave no answer within {self.patience:.0f} s and was ended")
            read = os.read(pipe, 1 << 16)
            if not read:
                raise self._dead()
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _dead(self) -> WorkerDied:
        """The exit status and the last line of stderr."""
        assert self._child is not None
        self.close(now=True)
        said = f": {self._last_line}" if self._last_line else ""
        return WorkerDied(f"{self.peer} died with status {self._child.returncode}{said}")

    def close(self, *, now: bool = False) -> None:
        """Close the pipe, which ends the worker; kill it if it does not end."""
        child = self._child
        if child is None:
            return
        for pipe in (child.stdin, child.stdout):
            if pipe is not None and not pipe.closed:
                with suppress(OSError):  # the reader has exited
                    pipe.close()
        try:
            child.wait(timeout=0.5 if now else 3)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if self._stderr is not None:
            self._stderr.seek(0)
            self._last_line = "".join(self._stderr.read().decode(errors="replace").strip().splitlines()[-1:])
            self._stderr.close()
            self._stderr = None


def environment(threads: int) -> dict[str, str]:
    """Our environment with the number of threads for every library, and this package on the path."""
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH", ""))))
    count = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    return {
        **os.environ,
        **count,
        "PYTHONPATH": path,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }

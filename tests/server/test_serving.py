"""The command as it is run: a process that a signal ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from draftwood.testing.folder import write_folder

pytestmark = pytest.mark.slow


class Process:
    """`draftwood serve` with a tiny model on a free port."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "draftwood", "serve", "--model", str(folder), "--served-model-name", "tiny"]
        command += ["--dtype", "float32", "--recipe", "autoregressive", "--port", "0", "--no-measure", *options]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(60), self.lines
        self.url = next(line.split()[-1] for line in self.lines if " on http://" in line)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if "API key" in line or "keys " in line:
                self._ready.set()
        self._ready.set()

    def stream(self, found: list[str], **options: Any) -> None:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "abc"}], "stream": True, **options}
        with httpx.stream(
            "POST", f"{self.url}/v1/chat/completions", json=body, timeout=30, trust_env=False, verify=False
        ) as answer:
            for line in answer.iter_lines():
                if line:
                    found.append(line.removeprefix("data: "))

    def ended(self) -> int:
        status = self.process.wait(30)
        self._reader.join(10)
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self._reader.join(10)
        self.process.stderr.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(Path(tmp_path_factory.mktemp("model")), max_positions=16384)


@pytest.fixture
def process(folder: Path, request: pytest.FixtureRequest) -> Iterator[Process]:
    found = Process(folder, *request.param)
    yield found
    found.close()


@pytest.mark.parametrize("process", [["--drain", "30"]], indirect=True)
def test_what_runs_may_end_before_the_server_does(process: Process) -> None:
    found: list[str] = []
    reader = threading.Thread(target=process.stream, args=(found,), kwargs={"max_tokens": 200, "ignore_eos": True})
    reader.start()
    while len(found) < 3:
        time.sleep(0.01)
    process.process.send_signal(signal.SIGTERM)
    reader.join(30)
    assert found[-1] == "[DONE]"
    assert json.loads(found[-2])["choices"][0]["finish_reason"] == "length"
    assert process.ended() == 0
    (line,) = (json.loads(line) for line in process.lines if line.startswith("{"))
    assert line["status"] == 200 and line["completion_tokens"] == 200 and line["finish"] == ["max_tokens"]
    assert "abc" not in json.dumps(line)


@pytest.mark.parametrize("process", [["--drain", "0.2", "--api-key", "ann:secret"]], indirect=True)
def test_a_grace_period_that_is_over_ends_streams_with_a_reason(process: Process) -> None:
    assert httpx.get(f"{process.url}/v1/models", trust_env=False, verify=False).status_code == 401
    found: list[str] = []
    headers = {"authorization": "Bearer secret"}
    body = {"model": "tiny", "prompt": "abc", "stream": True, "max_tokens": 16000, "ignore_eos": True}

    def read() -> None:
        url = f"{process.url}/v1/completions"
        with httpx.stream("POST", url, json=body, headers=headers, timeout=30, trust_env=False, verify=False) as answer:
            found.extend(line.removeprefix("data: ") for line in answer.iter_lines() if line)

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.5)
    process.process.send_signal(signal.SIGTERM)
    reader.join(20)
    last = json.loads(found[-2])["choices"][0]
    assert (last["finish_reason"], last["finish_detail"]) == ("abort", "shutdown")
    assert process.ended() == 0
    assert any('"tenant": "ann"' in line for line in process.lines) and not any("secret" in x for x in process.lines)


@pytest.mark.parametrize("process", [["--drain", "30"]], indirect=True)
def test_a_second_signal_ends_streams_with_a_reason_and_without_a_traceback(process: Process) -> None:
    """One client reads, one has stopped reading."""
    found: list[str] = []
    endless = {"max_tokens": 16000, "ignore_eos": True}
    reader = threading.Thread(target=process.stream, args=(found,), kwargs=endless)
    reader.start()
    host, port = process.url.removeprefix("http://").split(":")
    body = json.dumps({"model": "tiny", "prompt": "abc", "stream": True, **endless}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    with socket.create_connection((host, int(port))) as deaf:
        deaf.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        while len(found) < 3:
            time.sleep(0.01)
        for _ in range(2):
            process.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        reader.join(10)
        last = json.loads(found[-2])["choices"][0]
        assert (last["finish_reason"], last["finish_detail"]) == ("abort", "shutdown")
        assert process.ended() == 0
    assert not any("Traceback" in line or "ERROR" in line for line in process.lines), process.lines


def test_a_port_that_is_taken_is_said(folder: Path) -> None:
    first = Process(folder)
    try:
        port = first.url.rpartition(":")[2]
        command = [sys.executable, "-m", "draftwood", "serve", "--model", str(folder), "--port", port, "--no-measure"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command += ["--dtype", "float32", "--recipe", "autoregressive"]
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)
        assert second.returncode == 2 and "another --port" in second.stderr
    finally:
        first.close()

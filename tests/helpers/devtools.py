"""A headless Chromium driven through its DevTools protocol over a pipe: no driver program and no package is needed."""

import base64
import itertools
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from pathlib import Path
from typing import Any

from chromium import FLAGS, NAMES

Json = dict[str, Any]
PATIENCE = 20.0  # seconds that anything may take


class Page:
    """One tab. `complaints`: warnings and errors of its console, uncaught errors, violations of its policy."""

    def __init__(self, read: int, write: int) -> None:
        self.read, self.write = read, write
        self.numbers = itertools.count(1)
        self.rest = b""
        self.session: str | None = None
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Json:
        number = next(self.numbers)
        message: Json = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            got = self.message()
            if got.get("id") == number:
                if "error" in got:
                    raise RuntimeError(f"{method}: {got['error']}")
                return got["result"]
            self.note(got)

    def message(self) -> Json:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self.rest:
            if not select.select([self.read], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            got = os.read(self.read, 1 << 20)
            if not got:
                raise ConnectionError("the browser has ended")
            self.rest += got
        first, _, self.rest = self.rest.partition(b"\0")
        return json.loads(first)

    def note(self, event: Json) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(each.get("value", each)) for each in params["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])

    def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        got = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        if "exceptionDetails" in got:
            raise RuntimeError(f"{script}: {got['exceptionDetails']}")
        return got["result"].get("value")

    def wait(self, script: str) -> None:
        """Until the expression is true, as JavaScript sees it."""
        end = time.monotonic() + PATIENCE
        while not self.run(f"Boolean({script})"):
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {script}\n{self.complaints}")
            time.sleep(0.02)

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def size(self, width: int, height: int, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def prefer(self, **features: str) -> None:
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=named)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35}
        same: Json = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 if shift else 0}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **same, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **same)

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of what the selector finds: something in front of it gets the click instead."""
        self.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'nearest'}})")
        self.run(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )  # until it stands still
        where = self.run(
            f"(({{x, y, width, height}}) => ({{x: x + width / 2, y: y + height / 2}}))"
            f"(document.querySelector({selector!r}).getClientRects()[0])"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def shot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


def installed() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def browser_page(program: str) -> Iterator[Page]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        pipes = [fcntl(end, F_DUPFD_CLOEXEC, 20) for pair in (os.pipe(), os.pipe()) for end in pair]
        theirs, mine = (pipes[0], pipes[3]), (pipes[2], pipes[1])  # the browser reads 3 and writes 4
        arguments = [program, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        actions = [(os.POSIX_SPAWN_DUP2, theirs[0], 3), (os.POSIX_SPAWN_DUP2, theirs[1], 4)]
        with open(os.devnull, "w") as nothing:
            actions.append((os.POSIX_SPAWN_DUP2, nothing.fileno(), 2))
            process = os.posix_spawn(program, arguments, dict(os.environ), file_actions=actions, setpgroup=0)
        for end in theirs:
            os.close(end)
        try:
            yield Page(*mine)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            for end in mine:
                os.close(end)

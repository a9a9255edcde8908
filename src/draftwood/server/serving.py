"""Runs the application until a signal ends it. The first SIGTERM or SIGINT drains, the second ends what still runs, with a
reason, and a third one the process."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from draftwood.errors import EngineError, OptionError
from draftwood.server.app import Server

log = logging.getLogger("draftwood")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
MAX_HEADERS = 32 * 1024  # bytes of a request's head
LAST_WRITES = 1.0  # seconds that answers which were ended get to reach their clients


class _Uvicorn(uvicorn.Server):
    """uvicorn, which would let a process die of the signal that it has already obeyed. `on_ready`: hears the port."""

    def __init__(self, config: uvicorn.Config, server: Server, on_ready: Callable[[int], None]) -> None:
        super().__init__(config)
        self.draftwood, self.on_ready = server, on_ready
        self.signals = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Future[None] | None = None

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: Any = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self.on_ready(self.servers[0].sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.signals += 1
        self.should_exit = True
        if self.signals > 2:
            os._exit(128 + sig)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_drain if self.signals == 1 else self._end_now)

    def _begin_drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.ensure_future(self.draftwood.drain())

    def _end_now(self) -> None:
        """Without uvicorn's own way, which cancels its tasks and logs a traceback of each."""
        log.warning("a second signal: what still runs ends now; a third one kills")
        self._begin_drain()
        self.draftwood.hurry()
        assert self._loop is not None
        self._loop.call_later(LAST_WRITES, self._hang_up)

    def _hang_up(self) -> None:
        """Close the connections that are left: their clients do not read."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def configuration(server: Server, host: str, port: int) -> uvicorn.Config:
    return uvicorn.Config(
        server.app(),
        host=host,
        port=port,
        http="h11",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEADERS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(server.options.drain) + 10,
    )


def run(server: Server, host: str, port: int, on_ready: Callable[[int], None] = lambda port: None) -> None:
    """Serve until a signal comes. OptionError if the port is taken."""
    running = _Uvicorn(configuration(server, host, port), server, on_ready)
    try:
        running.run()
    except SystemExit:  # after it has logged why
        hint = "hint: another --port; 0 takes a free one"
        raise OptionError(f"the server could not start on {host}:{port}\n{hint}") from None
    if not running.started and not running.signals:
        raise EngineError("the server could not start\nhint: its log says why")


@contextmanager
def in_background(server: Server) -> Generator[tuple[int, asyncio.AbstractEventLoop]]:
    """The server in a thread, on a free port of loopback: the port, and its event loop. Signals are not touched."""
    running = uvicorn.Server(configuration(server, "127.0.0.1", 0))
    ready, found = threading.Event(), list[tuple[int, asyncio.AbstractEventLoop]]()

    async def main() -> None:
        serving = asyncio.ensure_future(running.serve())
        while not running.started and not serving.done():
            await asyncio.sleep(0.005)
        if running.started:
            found.append((running.servers[0].sockets[0].getsockname()[1], asyncio.get_running_loop()))
            ready.set()
        await serving

    def run_main() -> None:
        try:
            asyncio.run(main())
        except SystemExit:  # uvicorn, which has logged why
            log.error("the server could not start")
        finally:
            ready.set()

    thread = threading.Thread(target=run_main, name="draftwood-server", daemon=True)
    thread.start()
    ready.wait()
    try:
        if not found:
            raise EngineError("the server did not start\nhint: its log says why")
        yield found[0]
    finally:
        running.should_exit = True
        thread.join()

"""Responses that notice when the client has gone, and do not wait for one that stopped reading."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any, TypeVar

from draftwood.server.guard import NO_STORE, Receive, Scope, Send

T = TypeVar("T")
log = logging.getLogger("draftwood")

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), NO_STORE, (b"x-accel-buffering", b"no")]


class Gone(Exception):
    """The client has closed the connection."""


async def gone(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_there(receive: Receive, work: Awaitable[T]) -> T:
    """The result; Gone, and the work cancelled, if the client leaves before."""
    task, left = asyncio.ensure_future(work), asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        for each in (task, left):
            each.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


class EventStream:
    """An ASGI response. `patience`: seconds that one write may take."""

    def __init__(self, events: AsyncIterator[bytes], patience: float = 60.0, done: Any = None) -> None:
        self.events, self.patience, self.done = events, patience, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_there(receive, self._write(send))
        except (Gone, TimeoutError):
            log.debug("a client left its stream, or stopped reading it")
        finally:
            if self.done is not None:
                self.done()

    async def _write(self, send: Send) -> None:
        async with aclosing(self.events) as events:  # type: ignore[type-var]
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            async for event in events:
                body = {"type": "http.response.body", "body": event, "more_body": True}
                await asyncio.wait_for(send(body), self.patience)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

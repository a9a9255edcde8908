"""A client of HTTP/1.1 on loopback, one connection for each request, that may also misbehave. Nothing but asyncio."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any


@dataclass(slots=True)
class Reply:
    """What came back. `times`: when each event of a stream came, from the start of the request."""

    status: int = 0
    body: bytes = b""
    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    times: list[float] = field(default_factory=list[float])
    done: bool = False  # the stream said that it was whole
    seconds: float = 0.0

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)


async def ask(port: int, path: str, body: bytes, *, leave_after: int | None = None) -> Reply:
    """One request. `leave_after`: close the connection after so many events, the answer unfinished."""
    start, reply = perf_counter(), Reply()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_head(path, len(body)) + body)
        await writer.drain()
        headers = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        reply.status = int(headers[0].split()[1])
        if not any(b"text/event-stream" in line.lower() for line in headers):
            reply.body = await reader.read()
        else:
            async for event in _events(reader):
                reply.times.append(perf_counter() - start)
                if event == b"[DONE]":
                    reply.done = True
                    break
                reply.events.append(json.loads(event))
                if leave_after is not None and len(reply.events) >= leave_after:
                    break
        reply.seconds = perf_counter() - start
        return reply
    finally:
        writer.close()


async def stare(port: int, path: str, body: bytes, seconds: float) -> None:
    """Ask, then read nothing for so long, then leave."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    try:
        writer.write(_head(path, len(body)) + body)
        await writer.drain()
        await asyncio.sleep(seconds)
    finally:
        writer.transport.abort()
        del reader


def _head(path: str, length: int) -> bytes:
    lines = f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", "connection: close"
    return "\r\n".join((*lines, f"content-length: {length}", "", "")).encode()


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The data of server-sent events in a chunked body."""
    left = b""
    while size := int((await reader.readuntil(b"\r\n")).strip() or b"0", 16):
        left += (await reader.readexactly(size + 2))[:-2]
        while b"\n\n" in left:
            event, _, left = left.partition(b"\n\n")
            yield event.removeprefix(b"data: ")

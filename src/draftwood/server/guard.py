"""What stands before every endpoint: host names, keys, sizes, rates. Plain ASGI, so that nothing is buffered."""

import asyncio
import hmac
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwood.server.errors import ApiError

log = logging.getLogger("draftwood.requests")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")
OPEN = ("/", "/health", "/ready", "/metrics")  # need no key; nor do the files of the page
NO_STORE = (b"cache-control", b"no-store")
MAX_NESTING = 64
_SMALL = 32 * 1024  # bytes that are parsed at once; the event loop should not wait for more


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`hosts`: names that a Host header may have; empty: any. `keys`: name -> key; empty: none is asked for. `rate`:
    requests of one key in a minute; None: any."""

    hosts: tuple[str, ...] = LOOPBACK
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    max_body: int = 2 * 1024 * 1024
    rate: int | None = None


class Rate:
    """A bucket of tokens for each key, refilled steadily."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> int:
        """0, or the seconds until the next request is allowed."""
        now = time.monotonic()
        level, at = self._buckets.get(name, (float(self.per_minute), now))
        level = min(float(self.per_minute), level + (now - at) * self.per_minute / 60)
        allowed = level >= 1
        self._buckets[name] = (level - 1 if allowed else level), now
        return 0 if allowed else max(1, round((1 - level) * 60 / self.per_minute))


class Guard:
    """Refuses before the body is read. The name of the key becomes `scope["tenant"]`."""

    def __init__(self, app: Any, limits: Limits) -> None:
        self.app, self.limits = app, limits
        self._rate = None if limits.rate is None else Rate(limits.rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._check(scope)
        except ApiError as error:
            refusal = {"time": round(time.time(), 3), "path": scope["path"][:200], "status": error.status}
            log.info(json.dumps({**refusal, "tenant": scope["tenant"], "code": error.code}))
            await send_error(error, send)
            return
        await self.app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        scope["tenant"] = ""
        hosts = [value for name, value in headers if name == b"host"]
        if self.limits.hosts and (len(hosts) != 1 or host_name(hosts[0]) not in self.limits.hosts):
            shown = hosts[0].decode("latin-1")[:80] if hosts else ""
            raise ApiError(
                421, f"this server does not answer for the host {shown!r}\nhint: --allow-host NAME", code="unknown_host"
            )
        path = scope["path"]
        if self.limits.keys and path not in OPEN and not path.startswith("/page/"):
            scope["tenant"] = self._name_of(headers)
        if self._rate is not None and scope["method"] == "POST":
            wait = self._rate.take(scope["tenant"])
            if wait:
                raise ApiError(
                    429,
                    f"more than {self.limits.rate} requests in a minute",
                    code="rate_limit_exceeded",
                    retry_after=wait,
                )

    def _name_of(self, headers: Sequence[tuple[bytes, bytes]]) -> str:
        given = [value for name, value in headers if name == b"authorization"]
        scheme, _, key = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        found = ""
        for name, known in self.limits.keys.items():  # all are compared, so that time tells nothing
            if hmac.compare_digest(key.strip(), known.encode()):
                found = name
        if not found or scheme.lower() != b"bearer":
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
        return found


def host_name(value: bytes) -> str:
    """Without the port."""
    text = value.decode("latin-1").strip().lower()
    match = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(:\d{1,5})?", text)
    return match.group(1) if match else ""


async def send_error(error: ApiError, send: Send) -> None:
    body = json.dumps(error.body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), NO_STORE]
    if error.retry_after is not None:
        headers.append((b"retry-after", str(error.retry_after).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.status in (408, 413, 421):
        headers.append((b"connection", b"close"))  # what is left of the body is not read
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def read_json(scope: Scope, receive: Receive, max_body: int, patience: float = 60.0) -> Any:
    """The body as JSON; ApiError says what is wrong with it. `patience`: seconds in which it must have come."""
    try:
        return await asyncio.wait_for(_read(scope, receive, max_body), patience)
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {patience:g} seconds", code="request_timeout") from None


async def _read(scope: Scope, receive: Receive, max_body: int) -> Any:
    headers = dict(scope["headers"])
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise ApiError(
            415,
            f"the body is {kind.decode('latin-1')[:80] or 'of no type'!r}\nhint: content-type: application/json",
            code="unsupported_media_type",
        )
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > max_body:
        raise _too_large(max_body)
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(400, "the client has gone", code="disconnected")
        body += message.get("body", b"")
        if len(body) > max_body:
            raise _too_large(max_body)
        more = message.get("more_body", False)
    return await asyncio.to_thread(parsed, bytes(body)) if len(body) > _SMALL else parsed(bytes(body))


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is larger than {most} bytes\nhint: --max-body", code="body_too_large")


def parsed(body: bytes) -> Any:
    """JSON of valid Unicode, finite numbers and limited depth, each name once."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: byte {error.start}", code="invalid_body") from None
    try:
        found = json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
        if "\\u" in text:  # half a surrogate pair is no text
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_body") from None
    except UnicodeEncodeError:
        raise ApiError(400, "the body holds half a surrogate pair", code="invalid_body") from None
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {str(error)[:200]}", code="invalid_body") from None
    if _deep(found, MAX_NESTING):
        raise ApiError(400, f"the body is nested more than {MAX_NESTING} levels deep", code="invalid_body")
    return found


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{max(names, key=names.count)[:80]!r} is given twice")
    return found


def _deep(value: Any, left: int) -> bool:
    """Level by level, without recursion."""
    level = [value]
    while level and left >= 0:
        inner: list[Any] = []
        for each in level:
            inner += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        level = [each for each in inner if isinstance(each, dict | list)]
        left -= 1
    return bool(level)

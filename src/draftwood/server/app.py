"""The application: routes, and what each does with a request. Starlette alone: the table of fields checks the bodies, so a
second set of models would only have to agree with it."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from draftwood.errors import DraftwoodError, OptionError
from draftwood.server.answers import Answer, encoded, usage
from draftwood.server.asked import asked, messages
from draftwood.server.bridge import Busy
from draftwood.server.checks import check
from draftwood.server.errors import ApiError
from draftwood.server.fields import CHAT, MAX_CHOICES, TEXT
from draftwood.server.guard import Guard, Limits, read_json
from draftwood.server.metrics import CONTENT_TYPE, Metrics
from draftwood.server.openapi import DETOKENIZE, TOKENIZE, description
from draftwood.server.pages import Pages
from draftwood.server.sending import EventStream, Gone, while_there
from draftwood.server.service import Group, Service

log = logging.getLogger("draftwood")
requests_log = logging.getLogger("draftwood.requests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`drain`: seconds that running requests get when the server ends. `patience`: seconds that a write, or a body that is
    being sent, may take."""

    limits: Limits = field(default_factory=Limits)
    drain: float = 30.0
    patience: float = 60.0
    measure: bool = True


class Server:
    """The endpoints."""

    def __init__(self, service: Service, options: Options) -> None:
        self.service, self.options = service, options
        self.pages = Pages()
        self.metrics = Metrics(service.bridge)
        self.created = int(time.time())
        self.hurried = False

    def app(self) -> Any:
        """An ASGI application that starts and ends the engine thread."""
        pages = self.pages
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{name:path}", self.model, methods=["GET"]),
            Route("/draftwood/info", self.info, methods=["GET"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/openapi.json", self.openapi, methods=["GET"]),
            Route("/metrics", self.metrics_text, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/ready", self.ready, methods=["GET"]),
            Route("/", pages.index, methods=["GET"]),
            Route("/page/{path:path}", pages.file, methods=["GET"]),
        ]
        handlers: dict[Any, Any] = {ApiError: _on_api_error, HTTPException: _on_http_error, Exception: _on_error}
        inner = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)
        return Guard(inner, self.options.limits)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        await self.service.start(self.options.measure)
        try:
            yield
        finally:
            await self.service.bridge.close()

    async def drain(self) -> None:
        """Take nothing new; end what still runs after `drain` seconds."""
        self.service.ready = False
        self.service.bridge.refuse("it is shutting down")
        end = time.monotonic() + self.options.drain
        while self.service.bridge.outstanding and time.monotonic() < end and not self.hurried:
            await asyncio.sleep(0.05)
        if self.service.bridge.alive:
            await self.service.bridge.cancel_all("shutdown")

    def hurry(self) -> None:
        """End what still runs although its time is not over."""
        self.hurried = True

    # --- answers

    async def chat(self, request: Request) -> Any:
        return await self._answer(request, CHAT)

    async def completions(self, request: Request) -> Any:
        return await self._answer(request, TEXT)

    async def _answer(self, request: Request, where: str) -> Any:
        line = Line(request)
        try:
            return await self._answered(request, where, line)
        except Gone:
            line.status = 499
            return Response(status_code=400)  # nobody reads it
        except Busy as error:
            line.status = 503
            raise ApiError(503, str(error), code="overloaded", retry_after=error.retry_after) from None
        except ApiError as error:
            line.status = error.status
            raise
        finally:
            if not line.streaming:
                self._end(line)

    async def _answered(self, request: Request, where: str, line: "Line") -> Any:
        """The response; what it holds of the bridge is given back by `_end`."""
        body = await self._body(request)
        question = await asyncio.to_thread(asked, body, where)  # a prompt may be a list of many numbers
        self.service.check_model(question.model)
        bridge, count = self.service.bridge, question.n * len(question.prompts)
        most = min(MAX_CHOICES, bridge.max_outstanding)
        if count > most:
            raise ApiError(
                400, f"{count} answers are asked for, at most {most} may be", param="n", code="invalid_value"
            )
        bridge.enter(count)
        line.entered = count
        group = await while_there(request.receive, self.service.submit(question, request.scope["tenant"]))
        line.group = group
        answer = Answer(question, group, bridge)
        if question.stream:
            line.streaming, line.status = True, 200
            return EventStream(answer.events(), self.options.patience, lambda: self._end(line))
        found = await while_there(request.receive, answer.whole())
        line.status = 200
        return Response(encoded(found), media_type="application/json", headers={"cache-control": "no-store"})

    async def _body(self, request: Request) -> Any:
        limits = self.options.limits
        return await read_json(request.scope, request.receive, limits.max_body, self.options.patience)

    def _end(self, line: "Line") -> None:
        bridge = self.service.bridge
        bridge.leave(line.entered)
        if line.group is not None:
            bridge.cancel(line.group.asks, "disconnected")  # what still runs: nobody has read to its end
            self.metrics.observe(line.group.asks)
        self.metrics.responses.labels(str(line.status)).inc()
        line.write()

    # --- about the server

    async def models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [self._about(name) for name in self.service.model_names]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        self.service.check_model(name)
        return _json(self._about(name))

    def _about(self, name: str) -> dict[str, Any]:
        most = self.service.max_model_len
        return {"id": name, "object": "model", "created": self.created, "owned_by": "draftwood", "max_model_len": most}

    async def info(self, request: Request) -> Response:
        return _json(self.service.info())

    async def tokenize(self, request: Request) -> Response:
        body = await self._checked(request, TOKENIZE)
        if ("prompt" in body) == ("messages" in body):
            raise ApiError(400, "give either prompt or messages", param="prompt", code="invalid_value")
        ids = await asyncio.to_thread(self._tokens, body)
        return _json({"tokens": ids, "count": len(ids), "max_model_len": self.service.max_model_len})

    def _tokens(self, body: dict[str, Any]) -> list[int]:
        llm = self.service.first
        try:
            if "messages" in body:
                return llm.chat_prompt(messages(body["messages"]))
            return llm.tokenizer.encode(body["prompt"], special=body.get("add_special_tokens", True))
        except DraftwoodError as error:
            raise ApiError(400, str(error), code="invalid_value") from None

    async def detokenize(self, request: Request) -> Response:
        body = await self._checked(request, DETOKENIZE)
        ids = [int(token) for token in body["tokens"]]
        return _json({"prompt": await asyncio.to_thread(self.service.first.tokenizer.decode, ids, False)})

    async def _checked(self, request: Request, schema: dict[str, Any]) -> dict[str, Any]:
        """A body with `null` left out."""
        body = await self._body(request)
        check(body, schema, "body")
        found = {name: value for name, value in body.items() if value is not None}
        if "model" in found:
            self.service.check_model(found["model"])
        return found

    async def openapi(self, request: Request) -> Response:
        return _json(description(bool(self.options.limits.keys)))

    async def metrics_text(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE, headers={"cache-control": "no-store"})

    async def health(self, request: Request) -> Response:
        alive = self.service.bridge.alive
        return _json({"status": "ok" if alive else "the engine thread has ended"}, 200 if alive else 503)

    async def ready(self, request: Request) -> Response:
        why = self.service.bridge.refusing or ("" if self.service.ready else "it is starting")
        return _json({"status": why or "ok"}, 503 if why else 200, {"retry-after": "5"} if why else {})


class Line:
    """The log line of one request: a JSON object without any text of prompt or answer."""

    def __init__(self, request: Request) -> None:
        self.path, self.tenant = request.url.path, request.scope["tenant"]
        self.status, self.streaming, self.entered = 500, False, 0
        self.start = time.perf_counter()
        self.group: Group | None = None

    def write(self) -> None:
        seconds = time.perf_counter() - self.start
        found: dict[str, Any] = {
            "time": round(time.time(), 3),
            "path": self.path,
            "status": self.status,
            "tenant": self.tenant,
            "stream": self.streaming,
            "seconds": round(seconds, 4),
        }
        if self.group is not None:
            asks, used = self.group.asks, usage(self.group)
            firsts = [ask.first_at - ask.asked_at for ask in asks if ask.first_at is not None]
            found |= {
                "recipe": asks[0].recipe,
                "prompt_tokens": used["prompt_tokens"],
                "completion_tokens": used["completion_tokens"],
                "cached_tokens": used["prompt_tokens_details"]["cached_tokens"],
                "draft_tokens": sum(ask.request.stats.draft_tokens for ask in asks),
                "finish": [ask.ended_by or ask.request.finish_detail or ask.request.finish_reason for ask in asks],
                "first_token_seconds": round(min(firsts), 4) if firsts else None,
            }
        requests_log.info(json.dumps(found))


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    more = {"cache-control": "no-store", **(headers or {})}
    return Response(encoded(body), status, media_type="application/json", headers=more)


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if error.status in (408, 413):
        headers["connection"] = "close"  # what is left of the body is not read
    return Response(
        json.dumps(error.body),
        error.status,
        media_type="application/json",
        headers={"cache-control": "no-store", **headers},
    )


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    found = ApiError(error.status_code, f"{request.method} {request.url.path[:200]}: {error.detail}", code="not_found")
    response = await _on_api_error(request, found)
    response.headers.update(error.headers or {})
    return response


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, OptionError):
        return await _on_api_error(request, ApiError(400, str(error), code="invalid_value"))
    message = str(error) if isinstance(error, DraftwoodError) else "the server failed; its log says why"
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return await _on_api_error(request, ApiError(500, message, code="server_error"))

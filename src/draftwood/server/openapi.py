"""The OpenAPI description, made from the table of fields."""

from typing import Any

from draftwood._version import __version__
from draftwood.server.fields import CHAT, TEXT, body_schema

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
TOKENIZE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "model": {"type": "string"},
        "prompt": {"type": "string"},
        "messages": body_schema(CHAT)["properties"]["messages"],
        "add_special_tokens": {"type": "boolean"},
    },
    "additionalProperties": False,
}
DETOKENIZE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "model": {"type": "string"},
        "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}},
    },
    "required": ["tokens"],
    "additionalProperties": False,
}
OBJECT = {"type": "object"}
EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}  # of a stream


def description(keys: bool = False) -> dict[str, Any]:
    """`keys`: whether the server asks for API keys."""
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "draftwood", "version": __version__, "description": "OpenAI's interface with speculation."},
        "paths": {
            "/v1/chat/completions": {"post": _post("chat completion", body_schema(CHAT), streams=True)},
            "/v1/completions": {"post": _post("text completion", body_schema(TEXT), streams=True)},
            "/tokenize": {"post": _post("tokens of a text or a conversation", TOKENIZE)},
            "/detokenize": {"post": _post("text of tokens", DETOKENIZE)},
            "/v1/models": {"get": _get("the models")},
            "/draftwood/info": {"get": _get("model, recipes and speed")},
            "/health": {"get": _get("whether the engine thread lives", 503)},
            "/ready": {"get": _get("whether requests are taken", 503)},
        },
    }
    if keys:
        found["components"] = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
        found["security"] = [{"key": []}]
    return found


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _errors(*statuses: int) -> dict[str, Any]:
    return {str(status): {"description": "refused", "content": _json(ERROR)} for status in statuses}


def _post(text: str, body: dict[str, Any], *, streams: bool = False) -> dict[str, Any]:
    content = _json(OBJECT)
    if streams:
        content["text/event-stream"] = {"schema": EVENT}
    return {
        "summary": text,
        "requestBody": {"required": True, "content": _json(body)},
        "responses": {
            "200": {"description": "done", "content": content},
            **_errors(400, 401, 404, 408, 413, 415, 421, 429, 503),
        },
    }


def _get(text: str, *more: int) -> dict[str, Any]:
    also = {str(status): {"description": "not now", "content": _json(OBJECT)} for status in more}
    return {
        "summary": text,
        "responses": {"200": {"description": "done", "content": _json(OBJECT)}, **_errors(401, 421), **also},
    }

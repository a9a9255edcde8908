"""What the clients of a soak ask for, drawn from a seed: good requests of all kinds, and bad ones."""

import json
import random
from dataclasses import dataclass
from typing import Any

KINDS = {  # how often, in a hundred
    "whole": 22,
    "stream": 24,
    "completion": 10,
    "grammar": 10,
    "choices": 6,
    "plain": 6,
    "leaves": 8,
    "stares": 4,
    "bad": 10,
}
WORDS = "the river runs under old stone bridges while seven quiet birds count small red apples near a mill".split()
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": ["ann", "bob", "cleo"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
BAD: tuple[bytes, ...] = (
    b"",
    b"{",
    b"\xff\xfe",
    b"[" * 50_000,
    b'{"model": "soak", "messages": []}',
    b'{"model": "soak", "messages": [{"role": "user", "content": "a"}], "tools": []}',
    b'{"model": "soak", "messages": [{"role": "user", "content": "a"}], "temperature": "warm"}',
    b'{"model": "other", "messages": [{"role": "user", "content": "a"}]}',
    b'{"model": "soak", "messages": [{"role": "user", "content": "a"}], "structured_outputs": {"regex": "[a"}}',
    b'{"model": "soak", "messages": [{"role": "user", "content": "' + b"long " * 50_000 + b'"}]}',
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request of a client. `leave_after`: events after which it goes; `stare`: seconds in which it reads nothing."""

    kind: str
    path: str
    body: bytes
    leave_after: int | None = None
    stare: float = 0.0


def wanted(rng: random.Random, max_tokens: int) -> Wanted:
    """The next request. Seeds are given, so that it can be asked again alone."""
    kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
    if kind == "bad":
        return Wanted(kind, "/v1/chat/completions", rng.choice(BAD))
    text = " ".join(rng.choices(WORDS, k=rng.randint(2, 40)))
    if rng.random() < 0.5:  # something that drafts can copy
        text = f"{text}. {text}. {text}"
    body: dict[str, Any] = {
        "model": "soak",
        "temperature": rng.choice([0, 0, 0.7, 1.0]),
        "seed": rng.randrange(2**31),
        "max_tokens": rng.randint(1, max_tokens),
        "stream": kind in ("stream", "leaves", "stares") or (kind != "plain" and rng.random() < 0.3),
    }
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    if rng.random() < 0.2:
        body |= {"top_p": 0.9, "presence_penalty": 0.3, "min_tokens": 1}
    if rng.random() < 0.2:
        body["speculation"] = {"provenance": True, "rounds": True}
    if kind == "completion":
        return Wanted(kind, "/v1/completions", json.dumps({**body, "prompt": text}).encode())
    body["messages"] = [{"role": "user", "content": text}]
    if kind == "grammar":
        body |= {"max_tokens": 96, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
        body.pop("min_tokens", None)
    if kind == "choices":
        body |= {"n": rng.randint(2, 3)}
    if kind == "plain":
        body["speculation"] = {"enabled": False}
    if kind in ("leaves", "stares"):
        body |= {"max_tokens": 4 * max_tokens, "ignore_eos": True}
    leave = rng.randint(1, 5) if kind == "leaves" else None
    stare = rng.uniform(0.1, 1.0) if kind == "stares" else 0.0
    return Wanted(kind, "/v1/chat/completions", json.dumps(body).encode(), leave, stare)

"""The table of request fields: it drives the checks, the OpenAPI description and the table in the guide.

A field is HONOURED, ACCEPTED because it cannot change the text, or REFUSED by name. Any other field is unknown and refused,
too. `null` is as good as absent everywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from draftwood.core.sampling.params import LARGEST
from draftwood.errors import MOST

CHAT, TEXT = "chat", "completions"
BOTH = frozenset({CHAT, TEXT})

MAX_CHOICES = 64
MAX_TOP_LOGPROBS = 20
MAX_TOKENS = 2**31 - 1
SEEDS = -(2**63), 2**63 - 1


class Kind(Enum):
    HONOURED = "honoured"
    ACCEPTED = "accepted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Field:
    """`param`: the field of SamplingParams that it becomes as it is; "": it is handled by itself. `why`: of a refusal."""

    name: str
    kind: Kind
    text: str
    schema: Mapping[str, Any]
    where: frozenset[str] = BOTH
    param: str = ""
    required: bool = False


def _number(low: float | None = None, high: float | None = None, **more: Any) -> dict[str, Any]:
    given = {"minimum": low, "maximum": high}
    return {"type": "number", **{key: x for key, x in given.items() if x is not None}, **more}


def _whole(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


STRING = {"type": "string"}
BOOLEAN = {"type": "boolean"}
SCHEMA_OBJECT = {"type": "object"}
ID = _whole(0, MAX_TOKENS)
IDS = {"type": "array", "items": ID}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        **({"required": list(required)} if required else {}),
    }


TEXT_PARTS = {
    "type": "array",
    "minItems": 1,
    "items": _object(("type", "text"), type={"type": "string", "enum": ["text"]}, text=STRING),
}
CONTENT = {"anyOf": [STRING, TEXT_PARTS]}
MESSAGE = _object(
    ("role", "content"),
    role={"type": "string", "enum": ["system", "developer", "user", "assistant"]},
    content=CONTENT,
)
PROMPT = {
    "anyOf": [
        STRING,
        {"type": "array", "items": STRING, "minItems": 1, "maxItems": MAX_CHOICES},
        {"type": "array", "items": ID, "minItems": 1},
        {"type": "array", "items": {**IDS, "minItems": 1}, "minItems": 1, "maxItems": MAX_CHOICES},
    ]
}
RESPONSE_FORMAT = _object(
    ("type",),
    type={"type": "string", "enum": ["text", "json_object", "json_schema"]},
    json_schema=_object(("schema",), name=STRING, description=STRING, schema=SCHEMA_OBJECT, strict=BOOLEAN),
)
SPECULATION = _object(
    enabled=BOOLEAN,
    recipe=STRING,
    depth=_whole(1, MOST),
    nodes=_whole(1, MOST),
    budget=_whole(0, MAX_TOKENS),
    provenance=BOOLEAN,
    rounds=BOOLEAN,
)


def _honoured(name: str, text: str, schema: Mapping[str, Any], param: str = "", **more: Any) -> Field:
    return Field(name, Kind.HONOURED, text, schema, param=param, **more)


_CHAT, _TEXT = frozenset({CHAT}), frozenset({TEXT})
_HONOURED = (
    _honoured("model", "the name of `/v1/models`", STRING, required=True),
    _honoured(
        "messages",
        "the conversation; contents are texts or text parts; `developer` is `system`",
        {"type": "array", "items": MESSAGE, "minItems": 1},
        where=_CHAT,
        required=True,
    ),
    _honoured("prompt", "a text or token ids, or a list of either", PROMPT, where=_TEXT, required=True),
    _honoured("n", "choices for each prompt; choice i draws with the seed plus i", _whole(1, MAX_CHOICES)),
    _honoured("stream", "server-sent events", BOOLEAN),
    _honoured("stream_options", "`include_usage`: a last chunk with the usage", _object(include_usage=BOOLEAN)),
    _honoured("max_tokens", "default: 16 for completions, the rest of the context for chats", _whole(1, MAX_TOKENS)),
    _honoured("max_completion_tokens", "the same", _whole(1, MAX_TOKENS), where=_CHAT),
    _honoured("temperature", "0 takes the most probable token; default 1", _number(0, LARGEST), "temperature"),
    _honoured("top_p", "only the most probable tokens that sum to p", _number(None, 1, exclusiveMinimum=0), "top_p"),
    _honoured("top_k", "only the k most probable tokens; 0 or -1 keeps all", _whole(-1, MAX_TOKENS), "top_k"),
    _honoured("min_p", "only tokens at least this times as probable as the best", _number(0, 1), "min_p"),
    _honoured("presence_penalty", "subtracted from tokens of the answer", _number(-100, 100), "presence_penalty"),
    _honoured("frequency_penalty", "the same, for each occurrence", _number(-100, 100), "frequency_penalty"),
    _honoured(
        "repetition_penalty",
        "above 1: tokens of prompt and answer become less probable",
        _number(0.01, 100),
        "repetition_penalty",
    ),
    _honoured(
        "logit_bias",
        "token ids and what is added to their logits; -100 forbids a token",
        {"type": "object", "additionalProperties": _number(-100, 100)},
    ),
    _honoured("seed", "the same seed draws the same tokens; default: a fresh one", _whole(*SEEDS), "seed"),
    _honoured(
        "stop",
        "texts that end the answer",
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 64},
            ]
        },
        "stop",
    ),
    _honoured("stop_token_ids", "tokens that end the answer", IDS, "stop_token_ids"),
    _honoured("min_tokens", "no end before so many tokens", _whole(0, MAX_TOKENS), "min_tokens"),
    _honoured("ignore_eos", "go on after an end-of-sequence token", BOOLEAN, "ignore_eos"),
    _honoured("logprobs", "log-probabilities of the model itself", BOOLEAN, where=_CHAT),
    _honoured(
        "top_logprobs", "with `logprobs`: those of the best tokens, too", _whole(0, MAX_TOP_LOGPROBS), where=_CHAT
    ),
    _honoured(
        "logprobs",
        "log-probabilities of the tokens and of so many best ones",
        _whole(0, MAX_TOP_LOGPROBS),
        where=_TEXT,
    ),
    _honoured("response_format", "`json_object`, or `json_schema` with a schema", RESPONSE_FORMAT),
    _honoured(
        "structured_outputs",
        "`regex`, or `json` with a schema: what the answer must be",
        _object(regex=STRING, json=SCHEMA_OBJECT),
    ),
    _honoured(
        "prediction",
        "the answer that is expected: drafts, which never change the text",
        _object(("type", "content"), type={"type": "string", "enum": ["content"]}, content=CONTENT),
    ),
    _honoured("timeout", "seconds until the answer is cut off, its queueing included", _number(0.001, 86400)),
    _honoured(
        "speculation",
        "`enabled`, `recipe`, `depth` and `nodes` of a draft, `budget` of drafted tokens; `provenance`, `rounds`: show them",
        SPECULATION,
    ),
)
_ACCEPTED = {
    "user": STRING,
    "metadata": {"type": "object"},
    "store": BOOLEAN,
    "service_tier": STRING,
    "prompt_cache_key": STRING,
    "safety_identifier": STRING,
}
_REFUSED = {
    "tools": "this server calls no tools",
    "tool_choice": "this server calls no tools",
    "parallel_tool_calls": "this server calls no tools",
    "functions": "this server calls no functions",
    "function_call": "this server calls no functions",
    "modalities": "models here write text only",
    "audio": "models here write text only",
    "web_search_options": "this server searches nothing",
    "reasoning_effort": "models here have no such setting",
    "verbosity": "models here have no such setting",
    "best_of": "ask for n choices and take one",
    "use_beam_search": "answers are sampled or greedy",
    "length_penalty": "it belongs to beam search",
    "suffix": "models here only continue a text",
    "echo": "the prompt is not repeated in the answer",
    "prompt_logprobs": "log-probabilities are those of the answer",
    "guided_json": "use response_format or structured_outputs",
    "guided_regex": "use structured_outputs",
    "guided_choice": "use structured_outputs",
    "guided_grammar": "use structured_outputs",
}

FIELDS: tuple[Field, ...] = (
    *_HONOURED,
    *(Field(name, Kind.ACCEPTED, "cannot change the text", schema) for name, schema in _ACCEPTED.items()),
    *(Field(name, Kind.REFUSED, why, {}) for name, why in _REFUSED.items()),
)


def fields_of(where: str) -> dict[str, Field]:
    """The table of one endpoint."""
    return {field.name: field for field in FIELDS if where in field.where}


def body_schema(where: str) -> dict[str, Any]:
    """The request body of an endpoint as JSON Schema. A refused field is not in it, so no other value of it fits either."""
    known = [field for field in fields_of(where).values() if field.kind is not Kind.REFUSED]
    return {
        "type": "object",
        "properties": {field.name: {"description": field.text, **field.schema} for field in known},
        "required": [field.name for field in known if field.required],
        "additionalProperties": False,
    }


def guide_table() -> str:
    """The table as the guide shows it."""
    lines = ["| field | chat | completions | |", "|---|---|---|---|"]
    for kind in Kind:
        for field in (field for field in FIELDS if field.kind is kind):
            marks = " | ".join("x" if place in field.where else "" for place in (CHAT, TEXT))
            lines.append(f"| `{field.name}` | {marks} | {kind.value}: {field.text} |")
    return "\n".join(lines)

"""A request body as the parts that the engine takes: checked field by field, nothing dropped."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from draftwood.core.sampling.params import SamplingParams
from draftwood.errors import OptionError
from draftwood.server.checks import check
from draftwood.server.errors import ApiError
from draftwood.server.fields import CHAT, Kind, fields_of

COMPLETION_TOKENS = 16  # what OpenAI's completions default to


@dataclass(frozen=True, slots=True)
class Speculation:
    """How to draft. None: as the recipe does."""

    enabled: bool = True
    recipe: str | None = None
    depth: int | None = None
    nodes: int | None = None
    budget: int | None = None
    provenance: bool = False
    rounds: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """What one body asks for. `max_tokens` None: nothing was said, so `default_tokens`, or the rest of the context if that
    is less or there is no default. `grammar`: its kind and text."""

    chat: bool
    model: str
    prompts: tuple[Any, ...]  # texts, token ids or one conversation
    params: SamplingParams
    n: int = 1
    max_tokens: int | None = None
    default_tokens: int | None = None
    stream: bool = False
    include_usage: bool = False
    timeout: float | None = None
    grammar: tuple[str, Any] | None = None
    speculation: Speculation = field(default_factory=Speculation)

    def params_of(self, choice: int, room: int, tenant: str, grammar: Any) -> SamplingParams:
        """Of one choice. `room`: tokens that the context still holds, at least as many as are asked for."""
        seed = self.params.seed
        if seed is not None:
            seed = (seed + choice + 2**63) % 2**64 - 2**63  # wraps, as a 64-bit number
        most = max(1, min(room, self.max_tokens or self.default_tokens or room))
        try:
            return replace(self.params, seed=seed, max_tokens=most, tenant=tenant, grammar=grammar)
        except OptionError as error:
            raise refused(error) from None


def asked(body: Any, where: str) -> Asked:
    """ApiError 400 names the field that is wrong."""
    if not isinstance(body, dict):
        raise ApiError(400, f"the body is {type(body).__name__}, expected an object", code="invalid_body")
    given = checked(body, where)
    params = {field.param: given[name] for name, field in fields_of(where).items() if field.param and name in given}
    for name in ("top_k", "seed", "min_tokens"):
        if name in params:
            params[name] = int(params[name])
    if "stop_token_ids" in params:
        params["stop_token_ids"] = [int(token) for token in params["stop_token_ids"]]
    if "prediction" in given:
        params["prediction"] = text_of(given["prediction"]["content"])
    try:
        most = max(_max_tokens(given) or 2**31 - 1, 1)
        found = SamplingParams(
            **{"temperature": 1.0, **params},
            max_tokens=most,
            logit_bias=_bias(given.get("logit_bias", {})),
            logprobs=_logprobs(given, where),
        )
    except OptionError as error:
        raise refused(error) from None
    most = _max_tokens(given)
    return Asked(
        chat=where == CHAT,
        model=given["model"],
        prompts=(messages(given["messages"]),) if where == CHAT else prompts(given["prompt"]),
        params=found,
        n=int(given.get("n", 1)),
        max_tokens=most,
        default_tokens=None if where == CHAT else COMPLETION_TOKENS,
        stream=given.get("stream", False),
        include_usage=_without_null(given.get("stream_options", {})).get("include_usage", False),
        timeout=given.get("timeout"),
        grammar=_grammar(given),
        speculation=Speculation(**_without_null(given.get("speculation", {}))),
    )


def checked(body: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields that are given, each of its type. A refused or unknown one is an error."""
    known, given = fields_of(where), {name: value for name, value in body.items() if value is not None}
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
            hint = f"\nhint: did you mean {near[0]!r}?" if near else ""
            raise ApiError(400, f"unknown field: {name!r}{hint}", param=name, code="unknown_field")
        if known[name].kind is Kind.REFUSED:
            raise ApiError(
                400, f"{name} is not supported\nhint: {known[name].text}", param=name, code="unsupported_field"
            )
    for name, each in known.items():
        if name in given:
            _check_parts(name, given[name])
            check(given[name], each.schema, name)
        elif each.required:
            raise ApiError(400, f"{name} is missing", param=name, code="missing_field")
    if "stream_options" in given and not given.get("stream"):
        raise ApiError(400, "stream_options without stream\nhint: stream: true", param="stream_options")
    if given.get("top_logprobs") and not given.get("logprobs"):
        raise ApiError(400, "top_logprobs without logprobs\nhint: logprobs: true", param="top_logprobs")
    return given


def _check_parts(name: str, value: Any) -> None:
    """Refuse contents other than text by their own names."""
    if name != "messages" or not isinstance(value, list):
        return
    for i, message in enumerate(value):
        if not isinstance(message, dict):
            continue
        for extra in ("tool_calls", "function_call", "tool_call_id", "audio", "refusal", "name"):
            if message.get(extra) is not None:
                raise ApiError(
                    400,
                    f"messages[{i}].{extra} is not supported",
                    param=f"messages[{i}].{extra}",
                    code="unsupported_field",
                )
            message.pop(extra, None)
        parts = message.get("content")
        for j, part in enumerate(parts if isinstance(parts, list) else ()):
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind != "text":
                raise ApiError(
                    400,
                    f"messages[{i}].content[{j}]: parts of type {kind[:40]!r} are not supported\n"
                    "hint: models here read text only",
                    param=f"messages[{i}].content[{j}]",
                    code="unsupported_part",
                )


def messages(given: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Roles and texts as chat templates know them."""
    return [
        {"role": "system" if m["role"] == "developer" else m["role"], "content": text_of(m["content"])} for m in given
    ]


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def prompts(given: Any) -> tuple[Any, ...]:
    """Texts, or lists of token ids."""
    if isinstance(given, str):
        return (given,)
    if isinstance(given[0], int | float):
        return ([int(token) for token in given],)
    return tuple(each if isinstance(each, str) else [int(token) for token in each] for each in given)


def _max_tokens(given: Mapping[str, Any]) -> int | None:
    both = [int(given[name]) for name in ("max_tokens", "max_completion_tokens") if name in given]
    if len(set(both)) > 1:
        raise ApiError(
            400, "max_tokens and max_completion_tokens differ\nhint: give one of them", param="max_completion_tokens"
        )
    return both[0] if both else None


def _bias(given: Mapping[str, float]) -> dict[int, float]:
    """OpenAI's -100 bans a token; so does ours."""
    found: dict[int, float] = {}
    for token, value in given.items():
        if not (token.isascii() and token.isdecimal() and len(token) < 12):
            raise ApiError(400, f"logit_bias: {token[:40]!r} is no token id", param="logit_bias", code="invalid_value")
        found[int(token)] = float("-inf") if value == -100 else float(value)
    return found


def _logprobs(given: Mapping[str, Any], where: str) -> int | None:
    wanted = given.get("logprobs")
    if where == CHAT:
        return int(given.get("top_logprobs", 0)) if wanted else None
    return None if wanted is None else int(wanted)


def _grammar(given: Mapping[str, Any]) -> tuple[str, Any] | None:
    form = given.get("response_format", {"type": "text"})
    found: list[tuple[str, Any]] = []
    if form["type"] == "json_object":
        found.append(("json", {"type": "object"}))
    if form["type"] == "json_schema":
        if not form.get("json_schema"):
            raise ApiError(400, "response_format.json_schema is missing", param="response_format", code="missing_field")
        found.append(("json", form["json_schema"]["schema"]))
    found += _without_null(given.get("structured_outputs", {})).items()
    if len(found) > 1:
        raise ApiError(400, "several grammars are given\nhint: give one", param="structured_outputs")
    return found[0] if found else None


def _without_null(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def refused(error: Exception) -> ApiError:
    """An option that the engine refuses, as an answer. Its message begins with the option's name."""
    message = str(error)
    name = message.partition(" ")[0].rstrip(":")
    known = {each for where in ("chat", "completions") for each in fields_of(where)}
    return ApiError(400, message, param=name if name in known else None, code="invalid_value")

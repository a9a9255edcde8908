"""Updates of sequences as the JSON of OpenAI's interface: whole answers, and the chunks of a stream."""

import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from draftwood.core.request import Request
from draftwood.results import Piece
from draftwood.server.ask import Ask
from draftwood.server.asked import Asked
from draftwood.server.bridge import Bridge
from draftwood.server.errors import ApiError
from draftwood.server.service import Group

REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}
LEAST = -9999.0  # stands for a log-probability of minus infinity, which JSON lacks
DONE = b"data: [DONE]\n\n"


class Answer:
    """One HTTP request's answer, whole or as a stream."""

    def __init__(self, asked: Asked, group: Group, bridge: Bridge) -> None:
        self.asked, self.group, self.bridge = asked, group, bridge
        self.id = f"{'chatcmpl' if asked.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self._offset = [0] * len(group.asks)  # characters of each choice so far

    # --- whole

    async def whole(self) -> dict[str, Any]:
        """ApiError if a sequence failed."""
        asks, spec = self.group.asks, self.asked.speculation
        pieces: list[list[Piece]] = [[] for _ in asks]
        rounds_of: list[list[int]] = [[] for _ in asks]
        logprobs: list[list[Any]] = [[] for _ in asks]
        rounds: list[dict[str, Any]] = []
        updates = self.bridge.follow(asks)
        try:
            async for update in updates:
                i = update.choice
                pieces[i] += update.pieces
                rounds_of[i] += update.rounds_of
                logprobs[i] += update.logprobs
                rounds += [view.to_dict(i) for view in update.rounds]
        finally:
            await updates.aclose()  # type: ignore[attr-defined]
        for ask in asks:
            raise_error(ask.request)
        choices: list[dict[str, Any]] = []
        for i, ask in enumerate(asks):
            text = ask.request.settled
            body = {"message": {"role": "assistant", "content": text}} if self.asked.chat else {"text": text}
            choice = {
                "index": i,
                **body,
                "logprobs": self._logprobs(i, pieces[i], logprobs[i]),
                **finish(ask),
                "seed": ask.request.seed,
            }
            if spec.provenance:
                choice["provenance"] = provenance(pieces[i], rounds_of[i])
            choices.append(choice)
        kind = "chat.completion" if self.asked.chat else "text_completion"
        return {
            **self._head(kind),
            "choices": choices,
            "usage": usage(self.group),
            "metrics": metrics(self.group),
            **({"rounds": rounds} if spec.rounds else {}),
        }

    # --- stream

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events: a chunk for each round that emitted text."""
        asks, spec, chat = self.group.asks, self.asked.speculation, self.asked.chat
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = self._head(kind)
        left = len(asks)
        if chat:
            for i in range(len(asks)):
                yield event({**head, "choices": [_chunk(i, {"delta": {"role": "assistant", "content": ""}})]})
        updates = self.bridge.follow(asks)
        try:
            async for update in updates:
                i, text = update.choice, "".join(piece.text for piece in update.pieces)
                choice = _chunk(
                    i, {"delta": {"content": text} if text or not update.finished else {}} if chat else {"text": text}
                )
                choice["logprobs"] = self._logprobs(i, update.pieces, update.logprobs)
                if spec.provenance:
                    choice["provenance"] = provenance(update.pieces, update.rounds_of)
                chunk = {**head, "choices": [choice]}
                if spec.rounds:
                    chunk["rounds"] = [view.to_dict(i) for view in update.rounds]
                if update.finished:
                    left -= 1
                    ask = asks[i]
                    if ask.request.finish_reason == "error":
                        yield event(api_error(ask.request).body)
                    choice |= {**finish(ask), "seed": ask.request.seed}
                    if not left:
                        chunk["metrics"] = metrics(self.group)
                yield event(chunk)
        finally:
            await updates.aclose()  # type: ignore[attr-defined]
        if self.asked.include_usage:
            yield event({**head, "choices": [], "usage": usage(self.group)})
        yield DONE

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.asked.model,
            "system_fingerprint": f"{self.group.llm.loaded.info.backend}, {self.group.asks[0].recipe}",
        }

    def _logprobs(self, choice: int, pieces: Sequence[Piece], values: Sequence[Any]) -> dict[str, Any] | None:
        if self.asked.params.logprobs is None:
            return None
        tokenizer = self.group.llm.tokenizer

        def entry(token: int, value: float) -> dict[str, Any]:
            data = tokenizer.token_bytes(token)
            return {"token": data.decode("utf-8", "replace"), "logprob": max(value, LEAST), "bytes": list(data)}

        if self.asked.chat:
            return {
                "content": [
                    {**entry(piece.token_id, value), "top_logprobs": [entry(*each) for each in best]}
                    for piece, (value, best) in zip(pieces, values, strict=True)
                ],
                "refusal": None,
            }
        offsets: list[int] = []
        for piece in pieces:
            offsets.append(self._offset[choice])
            self._offset[choice] += len(piece.text)
        names = [
            token_names([piece.token_id, *(token for token, _ in best)], tokenizer.token_bytes)
            for piece, (_, best) in zip(pieces, values, strict=True)
        ]
        return {
            "tokens": [known[piece.token_id] for known, piece in zip(names, pieces, strict=True)],
            "token_logprobs": [max(value, LEAST) for value, _ in values],
            "top_logprobs": [
                {known[token]: max(x, LEAST) for token, x in best}
                for known, (_, best) in zip(names, values, strict=True)
            ],
            "text_offset": offsets,
        }


def token_names(token_ids: Iterable[int], bytes_of: Callable[[int], bytes]) -> dict[int, str]:
    """Keys for these tokens, all different: the text; of parts of a character the bytes, as OpenAI writes them; of tokens
    whose text another one has, the number, as vLLM writes it."""
    names: dict[int, str] = {}
    for token in dict.fromkeys(token_ids):
        data = bytes_of(token)
        try:
            name = data.decode()
        except UnicodeDecodeError:
            name = "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
        names[token] = name if name not in names.values() else f"token_id:{token}"
    return names


def _chunk(index: int, body: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, **body, "logprobs": None, "finish_reason": None}


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + encoded(data) + b"\n\n"


def encoded(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def finish(ask: Ask) -> dict[str, Any]:
    """Why a sequence ended. `finish_detail` says more than OpenAI's reasons can."""
    r = ask.request
    reason = REASONS[r.finish_reason or "error"]
    detail = ask.ended_by if r.finish_reason == "cancelled" else r.finish_detail
    found: dict[str, Any] = {"finish_reason": reason, "finish_detail": detail}
    if not r.finished or r.finish_reason != "stop":
        return found
    return {**found, "stop_reason": r.output[-1] if detail == "stop_token" else None}


def api_error(request: Request) -> ApiError:
    """What went wrong in a sequence: options that leave no token are the caller's, all else is ours."""
    message = request.error or "the request failed"
    own = message.startswith(("no token is left", "the grammar failed"))
    return ApiError(400 if own else 500, message, code="no_token_left" if own else "engine_error")


def raise_error(request: Request) -> None:
    if request.finish_reason == "error":
        raise api_error(request)


def provenance(pieces: Sequence[Piece], rounds: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {"token_id": p.token_id, "text": p.text, "source": p.source, "source_name": p.source_name, "round": number}
        for p, number in zip(pieces, rounds, strict=True)
    ]


def usage(group: Group) -> dict[str, Any]:
    requests = [ask.request for ask in group.asks]
    completion, stats = sum(len(r.output) for r in requests), [r.stats for r in requests]
    return {
        "prompt_tokens": group.num_prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": group.num_prompt_tokens + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(ask.request.stats.cached_tokens for ask in group.asks if ask.follows is None)
        },
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(s.accepted_prediction_tokens for s in stats),
            "rejected_prediction_tokens": sum(s.rejected_prediction_tokens for s in stats),
        },
    }


def metrics(group: Group) -> dict[str, Any]:
    """What speculation did, of all choices together. `acceptance_histogram[k]`: rounds that accepted k drafted tokens."""
    stats = [ask.request.stats for ask in group.asks]
    steps = sum(s.rounds_all + s.rounds_some + s.rounds_none for s in stats)
    levels = max((len(s.accepted) for s in stats), default=0)
    reached = [sum(s.accepted[j] for s in stats if j < len(s.accepted)) for j in range(levels)]
    accepted, drafted = sum(reached), sum(s.draft_tokens for s in stats)
    histogram = [a - b for a, b in zip([steps, *reached], [*reached, 0], strict=True)]
    saved = [s.saved_ms for s in stats if s.saved_ms is not None]
    disabled = next((s.disabled for s in stats if s.disabled), None)
    return {
        "recipe": group.asks[0].recipe,
        "lossless": group.llm.recipe.lossless,
        "notes": [*group.llm.recipe.notes, *group.llm.notes_of(group.asks[0].request)],
        "speculative_decoding": {
            "mean_acceptance_length": 1 + accepted / steps if steps else None,
            "draft_acceptance_rate": accepted / drafted if drafted else None,
            "acceptance_histogram": histogram,
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "estimated_saved_ms": sum(saved) if saved and drafted else None,
            "disabled": disabled,
        },
    }

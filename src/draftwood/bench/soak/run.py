"""One soak: clients against a server in this process, then the checks.

no crash        the engine thread lives, no answer has a status of 500
nothing lost    every request that stayed to the end got an answer or a refusal, bad ones a refusal
the same text   answers that have a seed equal those of the same requests asked alone afterwards, without faults
as before       no sequence in an engine or its queue, no caller counted, the caches whole, as many open files
no leak         a second run of the same load leaves the process about as large as the first
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter, sleep
from typing import Any

from draftwood.bench.soak.client import Reply, ask, stare
from draftwood.bench.soak.faults import FAULTS, Fault, FaultyDrafter
from draftwood.bench.soak.requests import SCHEMA, Wanted, wanted
from draftwood.bench.soak.resources import MEMORY_GROWTH, growth, open_files, resident_bytes
from draftwood.core.config import EngineConfig
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded
from draftwood.server.app import Options, Server
from draftwood.server.service import Service, service_of
from draftwood.server.serving import in_background

SETTLE = 10.0  # seconds in which all must be tidy again
ENDS = {"stop", "length"}


@dataclass(slots=True)
class Found:
    """What a soak found. `faults`: what is wrong, one line each; empty: all is well."""

    seconds: float = 0.0
    requests: Counter[str] = field(default_factory=Counter[str])
    statuses: Counter[int] = field(default_factory=Counter[int])
    injected: dict[str, int] = field(default_factory=dict[str, int])
    tokens: int = 0
    compared: int = 0
    near_ties: int = 0  # differing texts, where the backend does not promise the same bits
    first: list[float] = field(default_factory=list[float])
    each: list[float] = field(default_factory=list[float])
    memory: list[int] = field(default_factory=list[int])  # resident bytes after each run
    faults: list[str] = field(default_factory=list[str])

    def record(self) -> dict[str, Any]:
        """For JSON, with percentiles in place of all times."""
        return {
            "seconds": self.seconds,
            "requests": dict(self.requests),
            "statuses": {str(status): count for status, count in self.statuses.items()},
            "injected": self.injected,
            "tokens": self.tokens,
            "compared": self.compared,
            "near_ties": self.near_ties,
            "first_token_seconds": percentiles(self.first),
            "token_seconds": percentiles(self.each),
            "resident_bytes": self.memory,
            "memory_growth": growth(self.memory),
            "faults": self.faults,
        }


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """The median and the 99th percentile."""
    if not values:
        return None
    ordered = sorted(values)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]}


def soak(
    loaded: Loaded,
    recipe: str,
    *,
    seconds: float,
    clients: int = 32,
    max_tokens: int = 64,
    compare: int = 40,
    seed: int = 0,
    max_num_seqs: int = 8,
    faults: bool = True,
    runs: int = 1,
) -> Found:
    """`compare`: how many answers of a run are asked for again, alone. `runs`: of the same load on one server, of so many
    seconds each."""
    fault, llm = Fault(), LLM(loaded, recipe, config=EngineConfig(max_num_seqs=max_num_seqs))
    llm.recipe = replace(llm.recipe, drafter=FaultyDrafter(llm.recipe.drafter, fault))
    llm.engine.recipe = llm.recipe
    service = service_of(llm, [recipe], model_names=["soak"])
    with in_background(Server(service, Options(measure=False, patience=5.0))) as (port, _):
        found, files = Found(), open_files()
        for _ in range(runs):
            asyncio.run(_soaked(port, service, fault, seconds, clients, max_tokens, compare, seed, faults, found))
            found.memory += [size for size in (resident_bytes(),) if size is not None]
        _check_files(files, found)
    more = growth(found.memory)
    if more is not None and more > MEMORY_GROWTH:
        found.faults.append(f"resident memory grew by {more:.1%} in the last run, {MEMORY_GROWTH:.0%} is usual")
    found.injected = fault.met or {}
    return found


async def _soaked(
    port: int,
    service: Service,
    fault: Fault,
    seconds: float,
    clients: int,
    max_tokens: int,
    compare: int,
    seed: int,
    faults: bool,
    found: Found,
) -> None:
    answers: list[tuple[Wanted, Reply]] = []
    start = perf_counter()
    end = start + seconds
    tasks = [_client(port, random.Random(f"{seed}/{i}"), max_tokens, end, found, answers) for i in range(clients)]
    switching = asyncio.ensure_future(_switch(fault, random.Random(seed), end, faults))
    failed = [error for error in await asyncio.gather(*tasks, return_exceptions=True) if error is not None]
    await switching
    fault.now = ""
    found.seconds += perf_counter() - start
    found.faults += [f"a client failed: {type(error).__name__}: {error}" for error in failed]
    await _check_tidy(service, found)
    for asked, reply in random.Random(seed).sample(answers, min(compare, len(answers))):
        again = await ask(port, asked.path, asked.body)
        found.compared += 1
        if texts_of(again) != texts_of(reply):
            if service.first.runner.info.near_ties:
                found.near_ties += 1
            else:
                found.faults.append(f"another text alone: {asked.body[:300]!r}")
    await _check_tidy(service, found)


def _check_files(before: int | None, found: Found) -> None:
    """Connections take a moment to close."""
    end = perf_counter() + SETTLE
    while (now := open_files()) is not None and before is not None and now > before and perf_counter() < end:
        sleep(0.05)
    if now is not None and before is not None and now > before:
        found.faults.append(f"{now} files are open, {before} were at first")


async def _switch(fault: Fault, rng: random.Random, end: float, faults: bool) -> None:
    """One fault after the other, with rests between them."""
    while faults and perf_counter() < end:
        fault.now = rng.choice(FAULTS[1:]) if not fault.now else ""
        await asyncio.sleep(rng.uniform(0.05, 0.4))


async def _client(
    port: int, rng: random.Random, max_tokens: int, end: float, found: Found, answers: list[tuple[Wanted, Reply]]
) -> None:
    while perf_counter() < end:
        asked = wanted(rng, max_tokens)
        found.requests[asked.kind] += 1
        if asked.stare:
            await stare(port, asked.path, asked.body, asked.stare)
            continue
        try:
            reply = await asyncio.wait_for(ask(port, asked.path, asked.body, leave_after=asked.leave_after), 120)
        except (OSError, EOFError, TimeoutError) as error:
            found.faults.append(f"lost: a request of kind {asked.kind}: {type(error).__name__}: {error}")
            continue
        found.statuses[reply.status] += 1
        wrong = _wrong(asked, reply)
        if wrong:
            found.faults.append(f"{wrong}: {asked.kind}: {(reply.body or asked.body)[:300]!r}")
        elif asked.kind != "bad" and asked.leave_after is None and reply.status == 200:
            answers.append((asked, reply))
            _count(reply, found)


def _wrong(asked: Wanted, reply: Reply) -> str:
    """What is wrong with a reply; "" if nothing."""
    if asked.kind == "bad":
        return "" if 400 <= reply.status < 500 else f"a bad request got {reply.status}"
    if reply.status == 503:  # more callers than the server takes
        return ""
    if reply.status != 200:
        return f"a good request got {reply.status}"
    if asked.leave_after is not None:
        return ""
    if reply.events and not reply.done:
        return "a stream broke off"
    if any("error" in event for event in reply.events):
        return "a stream held an error"
    if not set(reasons_of(reply)) <= ENDS:
        return f"an answer ended by {reasons_of(reply)}"
    if asked.kind == "grammar":
        for text, reason in zip(texts_of(reply), reasons_of(reply), strict=True):
            if reason == "stop" and set(json.loads(text)) != set(SCHEMA["properties"]):
                return "an answer does not fit its schema"
    return ""


def _choices(reply: Reply) -> list[dict[str, Any]]:
    return [c for event in reply.events for c in event["choices"]] if reply.events else reply.json["choices"]


def texts_of(reply: Reply) -> list[str]:
    """The text of each choice, of a whole answer or a stream."""
    if reply.status != 200:
        return []
    texts: dict[int, str] = {}
    for choice in _choices(reply):
        part = choice.get("message") or choice.get("delta")
        text = choice.get("text", "") if part is None else part.get("content", "")
        texts[choice["index"]] = texts.get(choice["index"], "") + text
    return [texts[i] for i in sorted(texts)]


def reasons_of(reply: Reply) -> list[str]:
    ended = {c["index"]: c["finish_reason"] for c in _choices(reply) if c["finish_reason"] is not None}
    return [ended[i] for i in sorted(ended)]


def _count(reply: Reply, found: Found) -> None:
    if not reply.events:
        found.tokens += reply.json["usage"]["completion_tokens"]
        return
    tokens = reply.events[-1]["usage"]["completion_tokens"]
    found.tokens += tokens
    times = [at for at, event in zip(reply.times, reply.events, strict=False) if _has_text(event)]
    if times:
        found.first.append(times[0])
    if len(times) > 1 and len(reasons_of(reply)) == 1:
        found.each.append((times[-1] - times[0]) / (tokens - 1))


def _has_text(event: dict[str, Any]) -> bool:
    return any(c.get("text") or c.get("delta", {}).get("content") for c in event["choices"])


async def _check_tidy(service: Service, found: Found) -> None:
    """Nothing may be left of any request."""
    bridge, end = service.bridge, perf_counter() + SETTLE
    while (bridge.num_live or bridge.outstanding) and perf_counter() < end:
        await asyncio.sleep(0.02)
    if not bridge.alive:
        found.faults.append(f"the engine thread has ended: {bridge.failure}")
        return
    if bridge.num_live or bridge.outstanding:
        found.faults.append(f"{bridge.num_live} sequences and {bridge.outstanding} callers are left")
    for name, llm in bridge.llms.items():
        engine = llm.engine
        left = len(engine.scheduler.running) + engine.scheduler.waiting
        if left or engine.has_work or engine.carried or engine.unfreed:
            found.faults.append(f"{name}: {left} requests are left in the engine")
        engine.runner.check_integrity()

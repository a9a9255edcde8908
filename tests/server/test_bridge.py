"""Faults, disconnects and slow readers: each costs its own request and no other."""

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from draftwood import LLM
from draftwood.core.config import EngineConfig
from draftwood.models.loading.load import Loaded
from draftwood.server import bridge as bridge_module
from live_server import MODEL, LiveServer, events, started

LONG: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True}


def open_stream(server: LiveServer, **options: Any) -> socket.socket:
    """A stream whose answer nobody reads so far."""
    messages = [{"role": "user", "content": "abc"}]
    body = json.dumps({"model": MODEL, "messages": messages, "stream": True, **LONG, **options}).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def slowed(llm: LLM) -> None:
    """Rounds of a hundredth of a second, so that nothing is over before it is looked at."""
    execute = llm.engine.runner.execute

    def slow(*given: Any, **more: Any) -> Any:
        time.sleep(0.01)
        return execute(*given, **more)

    llm.engine.runner.execute = slow  # type: ignore[method-assign]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_takes_its_request_with_it(loaded: Loaded, stream: bool) -> None:
    with started(loaded, ("autoregressive",), change=slowed) as server:
        bridge = server.service.bridge
        connection = open_stream(server, stream=stream)
        assert wait_for(lambda: bridge.num_live == 1 and bool(bridge._live[0].request.output))
        ask = bridge._live[0]
        connection.close()
        assert wait_for(lambda: not bridge.num_live) and server.idle()
        assert ask.ended_by == "disconnected" and len(ask.request.output) < 900
        assert not server.service.first.engine.scheduler.running


def test_a_client_that_stops_reading_stalls_nobody(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_module, "MAX_UNREAD", 64)
    monkeypatch.setattr("draftwood.server.sending.EventStream._write", _stuck)
    with started(loaded, ("autoregressive",)) as server:
        bridge = server.service.bridge
        connection = open_stream(server)
        assert wait_for(lambda: bridge.num_live == 1)
        ask = bridge._live[0]
        assert server.chat(max_tokens=20).json()["usage"]["completion_tokens"] > 0
        assert wait_for(lambda: not bridge.num_live)
        assert ask.ended_by == "slow_reader" and 64 < len(ask.request.output) < 900
        connection.close()
        assert server.idle()


async def _stuck(self: Any, send: Any) -> None:
    """A writer whose client never takes anything: the events are asked for once and then no more."""
    await anext(aiter(self.events))
    await asyncio.sleep(3600)


def test_a_write_that_takes_too_long_ends_the_stream(loaded: Loaded) -> None:
    with started(loaded, ("autoregressive",), patience=0.2) as server:
        connection = open_stream(server, n=8, max_tokens=900, logprobs=True, top_logprobs=20)  # more than buffers hold
        assert wait_for(server.idle, 20)
        connection.close()
        assert server.chat(max_tokens=3).status_code == 200


class Breaking:
    """A drafter that fails when it is told to."""

    def __init__(self, inner: Any, switch: dict[str, bool]) -> None:
        self.inner, self.switch = inner, switch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def propose(self, *given: Any) -> Any:
        if self.switch["on"]:
            raise RuntimeError("the drafter broke")
        return self.inner.propose(*given)


def test_a_drafter_that_raises_costs_drafts_and_no_answer(loaded: Loaded) -> None:
    switch = {"on": True}

    def broken(llm: LLM) -> None:
        llm.recipe = replace(llm.recipe, drafter=Breaking(llm.recipe.drafter, switch))
        llm.engine.recipe = llm.recipe

    with started(loaded, change=broken) as server:
        found = server.chat("abcabc", temperature=0, max_tokens=20).json()
        assert "the drafter broke" in found["metrics"]["speculative_decoding"]["disabled"]
        switch["on"] = False
        again = server.chat("abcabc", temperature=0, max_tokens=20).json()
        assert again["choices"][0]["message"] == found["choices"][0]["message"]
        assert again["metrics"]["speculative_decoding"]["disabled"] is None


@pytest.mark.slow
def test_a_round_that_fails_ends_its_requests_and_no_later_one(loaded: Loaded, caplog: Any) -> None:
    switch = {"on": False}

    def breakable(llm: LLM) -> None:
        slowed(llm)
        execute = llm.engine.runner.execute

        def run(*given: Any, **more: Any) -> Any:
            if switch["on"]:
                raise RuntimeError("the pass broke")
            return execute(*given, **more)

        llm.engine.runner.execute = run  # type: ignore[method-assign]

    with caplog.at_level(logging.CRITICAL), started(loaded, change=breakable) as server:
        found: list[Any] = []
        other = threading.Thread(target=lambda: found.append(server.chat(**LONG, speculation={"enabled": False})))
        streamed = threading.Thread(target=lambda: found.append(server.chat(**LONG, stream=True)))
        other.start()
        streamed.start()
        assert wait_for(lambda: server.service.bridge.num_live == 2)
        assert wait_for(lambda: all(ask.request.output for ask in server.service.bridge._live))
        switch["on"] = True
        streamed.join(20)
        (chunks,) = (events(each) for each in found if each.headers["content-type"].startswith("text/event-stream"))
        assert "the pass broke" in next(c["error"]["message"] for c in chunks if "error" in c)
        other.join(30)
        whole = next(each for each in found if not each.headers["content-type"].startswith("text/event-stream"))
        assert whole.json()["usage"]["completion_tokens"] == 900  # another recipe's engine
        assert server.chat(max_tokens=3).status_code == 200  # a fresh engine
        with server.client() as client:
            assert client.get("/health").status_code == 200
        assert server.idle()


def test_requests_share_rounds(loaded: Loaded) -> None:
    with started(loaded, config=EngineConfig(max_num_seqs=4), change=slowed) as server:
        threads = [threading.Thread(target=lambda: server.chat(max_tokens=40, ignore_eos=True)) for _ in range(4)]
        for thread in threads:
            thread.start()
        most = 0
        while any(thread.is_alive() for thread in threads):
            most = max(most, len(server.service.first.engine.scheduler.running))
            time.sleep(0.002)
        assert most == 4


def test_the_last_chunk_says_that_the_server_has_stopped(loaded: Loaded) -> None:
    with started(loaded, ("autoregressive",), drain=0.1, change=slowed) as server:
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.append(server.chat(**LONG, stream=True)))
        reader.start()
        assert wait_for(lambda: server.service.bridge.num_live == 1)
        server.run(server.server.drain())
        reader.join(10)
        last = events(found[0])[-1]["choices"][0]
        assert (last["finish_reason"], last["finish_detail"]) == ("abort", "shutdown")
        refused = server.chat(max_tokens=2)
        assert refused.status_code == 503 and "retry-after" in refused.headers
        with server.client() as client:
            assert client.get("/ready").status_code == 503 and client.get("/health").status_code == 200


def test_an_engine_thread_that_dies_is_said_and_answers_what_it_had(loaded: Loaded, caplog: Any) -> None:
    def die() -> None:
        raise SystemExit("the thread was told to end")

    with caplog.at_level(logging.CRITICAL), started(loaded, ("autoregressive",), change=slowed) as server:
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.append(server.chat(**LONG)))
        reader.start()
        bridge = server.service.bridge
        assert wait_for(lambda: bridge.num_live == 1)
        bridge._commands.put(die)
        reader.join(10)
        assert found[0].status_code == 500 and "engine thread failed" in found[0].json()["error"]["message"]
        with server.client() as client:
            assert client.get("/health").status_code == client.get("/ready").status_code == 503
        assert server.chat(max_tokens=2).status_code == 503

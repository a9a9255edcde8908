"""A real server in a thread, on a free port of loopback."""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from draftwood.core.config import EngineConfig
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded
from draftwood.server.app import Options, Server
from draftwood.server.service import Service, service_of
from draftwood.server.serving import in_background

MODEL = "tiny"


@dataclass
class LiveServer:
    port: int
    service: Service
    server: Server
    loop: asyncio.AbstractEventLoop
    clients: list[Any] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> httpx.Client:
        # Without certificates, which take longer to load than an answer.
        return httpx.Client(base_url=self.url, timeout=30, trust_env=False, verify=False, **options)

    def openai(self, api_key: str = "none") -> Any:
        from openai import DefaultHttpxClient, OpenAI

        http = DefaultHttpxClient(timeout=30, trust_env=False, verify=False)
        self.clients.append(http)
        return OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, http_client=http)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json=body, **options)

    def chat(self, content: str = "abc abc abc", **options: Any) -> httpx.Response:
        messages = [{"role": "user", "content": content}]
        return self.post("/v1/chat/completions", {"model": MODEL, "messages": messages, **options})

    def complete(self, prompt: Any = "abc abc abc", **options: Any) -> httpx.Response:
        return self.post("/v1/completions", {"model": MODEL, "prompt": prompt, **options})

    def raw(self, data: bytes, wait: float = 10.0) -> bytes:
        """Bytes as they are, and all that comes back."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as connection:
            connection.sendall(data)
            found = b""
            try:
                while part := connection.recv(65536):
                    found += part
            except (TimeoutError, ConnectionResetError):
                pass
            return found

    def run(self, coroutine: Any) -> Any:
        """In the server's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def idle(self, wait: float = 5.0) -> bool:
        """Whether nothing runs or waits any more, soon: an answer ends before the server has tidied up."""
        bridge, end = self.service.bridge, time.monotonic() + wait
        while (bridge.num_live or bridge.outstanding) and time.monotonic() < end:
            time.sleep(0.01)
        return not bridge.num_live and not bridge.outstanding


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream; the last line must say that it is whole."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@contextmanager
def started(
    loaded: Loaded,
    recipes: Sequence[str] = ("prompt_lookup",),
    *,
    config: EngineConfig | None = None,
    change: Callable[[LLM], None] = lambda llm: None,
    max_outstanding: int = 256,
    timeout: float | None = None,
    **options: Any,
) -> Iterator[LiveServer]:
    """`change`: what a test does to the model before anything runs. `options`: of the application."""
    llm = LLM(loaded, recipes[0], config=config or EngineConfig(max_num_seqs=4))
    change(llm)
    service = service_of(llm, recipes, max_outstanding=max_outstanding, model_names=[MODEL], timeout=timeout)
    server = Server(service, Options(**{"measure": False, **options}))
    with in_background(server) as (port, loop):
        found = LiveServer(port, service, server, loop)
        try:
            yield found
        finally:
            for client in found.clients:
                client.close()

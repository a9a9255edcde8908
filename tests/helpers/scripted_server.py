"""A server that sends the playground scripted answers: speeds, sizes and contents that a model would not give on request."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import draftwood
from scripted_answers import Json

PAGE = Path(draftwood.__file__).parent / "server" / "page"
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript"}
INFO = {
    "model": "SmolLM2-135M-Instruct",
    "backend": "int8 avx512-vnni",
    "device": "cpu",
    "recipes": ["auto", "eagle3", "prompt_lookup", "medusa"],
    "default_recipe": "auto",
    "lossless": {"auto": True, "eagle3": True, "prompt_lookup": True, "medusa": False},
    "plain_tokens_per_second": 134.7,
    "max_model_len": 8192,
    "version": draftwood.__version__,
}
Script = Callable[[Json], Iterable[Json | float]]


class Refusal(Exception):
    """Instead of an answer: an error as the API writes it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.body = {
            "error": {"message": message, "type": "invalid_request_error", "code": "bad_value", "param": "temperature"}
        }


class ScriptedServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script: Script, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.script = script
        self.asked: list[Json] = []
        self.left: list[int] = []  # requests whose reader went away, by their place in `asked`

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: ScriptedServer

    def do_GET(self) -> None:
        name = "index.html" if self.path == "/" else self.path.removeprefix("/page/")
        if self.path == "/draftwood/info":
            self.reply(200, "application/json", json.dumps(INFO).encode())
        elif (PAGE / name).is_file():
            self.reply(200, TYPES[Path(name).suffix], (PAGE / name).read_bytes())
        else:
            self.reply(404, "text/plain", b"")

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = len(self.server.asked)
        self.server.asked.append(request)
        try:
            chunks = iter(self.server.script(request))
        except Refusal as refusal:
            return self.reply(400, "application/json", json.dumps(refusal.body).encode())
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for chunk in chunks:
                if isinstance(chunk, float):
                    time.sleep(chunk)
                else:
                    self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            self.server.left.append(number)

    def reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def scripted_server(script: Script) -> Iterator[ScriptedServer]:
    server = ScriptedServer(script)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

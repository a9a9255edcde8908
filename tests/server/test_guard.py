"""What stands before the endpoints, against a live server and raw bytes."""

import json

import pytest

from draftwood.models.loading.load import Loaded
from draftwood.server.errors import ApiError
from draftwood.server.guard import Limits, Rate, host_name, parsed
from live_server import MODEL, LiveServer, started

JSON = {"content-type": "application/json"}


def post(server: LiveServer, data: bytes, headers: dict[str, str] = JSON) -> tuple[int, str]:
    with server.client() as client:
        found = client.post("/v1/completions", content=data, headers=headers)
        return found.status_code, found.json()["error"]["message"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"model": NaN}', "NaN is no number"),
        (b'{"model": 1e999, "prompt": "a"}', "expected a string"),
        (b'{"model": "\xff"}', "not UTF-8"),
        (b'{"model": "\\ud800", "prompt": "a"}', "surrogate"),
        (b'{"model": "a", "model": "b"}', "'model' is given twice"),
        (b"[1, 2]", "expected an object"),
        (b'{"prompt": ' + b"[" * 100 + b"]" * 100 + b"}", "levels deep"),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too deeply"),
        (b'{"n": ' + b"9" * 10_000 + b"}", "not JSON"),
    ],
    ids=str,
)
def test_a_body_that_is_no_plain_json_is_refused(server: LiveServer, data: bytes, said: str) -> None:
    status, message = post(server, data)
    assert status == 400 and said in message


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_only_json_is_read(server: LiveServer, kind: str) -> None:
    headers = {"content-type": kind} if kind else {}
    assert post(server, b'{"model": "tiny", "prompt": "a"}', headers)[0] == 415


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused_before_it_is_read_to_its_end(loaded: Loaded, chunked: bool) -> None:
    with started(loaded, limits=Limits(max_body=5000)) as server:
        if chunked:
            head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            data = head + b"transfer-encoding: chunked\r\n\r\n" + (b"1000\r\n" + b"x" * 4096 + b"\r\n") * 2
            assert b" 413 " in server.raw(data, wait=2).split(b"\r\n")[0]
        else:
            assert post(server, b" " * 6000)[0] == 413
        assert server.complete(max_tokens=1).status_code == 200


def test_a_body_that_does_not_come_is_not_waited_for(loaded: Loaded) -> None:
    with started(loaded, patience=0.2) as server:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        assert b" 408 " in server.raw(head + b'content-length: 100\r\n\r\n{"model"', wait=5).split(b"\r\n")[0]
        assert server.complete(max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page/../app.py",
        "/page/../../cli/main.py",
        "/page/%2e%2e/app.py",
        "/page/..%2fapp.py",
        "/page/....//app.py",
        "/page//etc/passwd",
        "/page/%00",
        "/page/",
        "/../../etc/passwd",
        "/page/..\\app.py",
    ],
)
def test_no_path_leads_out_of_the_page(server: LiveServer, path: str) -> None:
    found = server.raw(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    assert b" 404 " in found.split(b"\r\n")[0] and b"def " not in found


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil", "", "127.0.0.1.evil:80", "localhost:80:80"])
def test_another_host_name_is_refused(server: LiveServer, host: str) -> None:
    found = server.raw(f"GET /health HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
    assert b" 421 " in found.split(b"\r\n")[0] or b" 400 " in found.split(b"\r\n")[0]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "LocalHost:1", "[::1]:8000"])
def test_loopback_names_are_answered(server: LiveServer, host: str) -> None:
    found = server.raw(f"GET /health HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
    assert b" 200 " in found.split(b"\r\n")[0]


def test_a_flood_of_headers_ends_its_own_connection(server: LiveServer) -> None:
    flood = b"".join(b"x-%d: %s\r\n" % (i, b"y" * 100) for i in range(2000))
    found = server.raw(b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + flood + b"\r\n", wait=5)
    assert not found or b" 400 " in found.split(b"\r\n")[0] or b" 431 " in found.split(b"\r\n")[0]
    assert server.complete(max_tokens=1).status_code == 200


def test_rubbish_instead_of_http_ends_its_own_connection(server: LiveServer) -> None:
    for data in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    ):
        server.raw(data, wait=2)
    assert server.complete(max_tokens=1).status_code == 200


def test_a_bucket_refills_steadily(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    rate = Rate(60)
    assert [rate.take("a") for _ in range(60)] == [0] * 60
    assert rate.take("a") == 1 and rate.take("b") == 0
    now[0] = 2.0
    assert [rate.take("a") for _ in range(3)] == [0, 0, 1]


def test_host_names_lose_their_port() -> None:
    assert host_name(b"Localhost:80") == "localhost" and host_name(b"[::1]:80") == "[::1]"
    assert host_name(b"a:b:c") == host_name(b"") == ""


def test_what_is_read_is_what_was_written() -> None:
    body = {
        "model": MODEL,
        "prompt": "é\N{GRINNING FACE}",
        "n": [1, 2.5, None],
    }
    assert parsed(json.dumps(body).encode()) == body
    with pytest.raises(ApiError):
        parsed(b"\xff")

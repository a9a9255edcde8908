"""The main program of a worker process: `python -m draftwood.bench.spec.worker_main NAME`, one JSON line in, one out.

    {"op": "open", "settings": {...}}                                    -> {"ok": facts}
    {"op": "answer", "method": ..., "prompt": [...], "index": 0}         -> {"ok": fields of an Answer} or {"error": why}

Between two lines the worker blocks on reading and uses no CPU. It ends when the pipe is closed.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

from draftwood.bench.spec.peers import Peer, Settings, make

OPS = ("open", "answer", "encode", "judge")


def serve(peer: Peer, lines: IO[str], reply: Callable[[str], object]) -> None:
    """Reply to every line. An exception becomes a reply with "error"."""
    for line in lines:
        try:
            said: dict[str, Any] = {"ok": _do(peer, json.loads(line))}
        except Exception as error:
            text = str(error).strip()
            said = {"error": f"{type(error).__name__}: {text}" if text else type(error).__name__}
        reply(json.dumps(said) + "\n")


def _do(peer: Peer, asked: dict[str, Any]) -> dict[str, Any]:
    op = asked.pop("op")
    if op not in OPS:
        raise ValueError(f"unknown op {op!r}")
    if op == "open":
        raw: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in asked["settings"].items()}
        asked = {"settings": Settings(**raw)}
    return getattr(peer, op)(**asked)


def private_stdout() -> Callable[[str], object]:
    """A function that writes replies. From now on, what libraries print to stdout goes to stderr."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")  # by line
    os.dup2(2, 1)
    return pipe.write


def main(peer: Peer) -> None:
    """Serve a peer on this process's pipes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when to stop
    reply = private_stdout()
    with suppress(BrokenPipeError):
        serve(peer, sys.stdin, reply)
    os._exit(0)  # the destructors of some engines take long


if __name__ == "__main__":
    main(make(sys.argv[1]))

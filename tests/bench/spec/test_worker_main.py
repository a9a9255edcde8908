import io
import json

from draftwood.bench.spec.peers import Settings
from draftwood.bench.spec.worker_main import serve


class Echo:
    def open(self, settings: Settings):
        self.settings = settings
        return {"threads": settings.threads}

    def answer(self, method, prompt, index):
        if index:
            raise KeyError
        return {"tokens": [*prompt, *self.settings.eos]}


def replies(*asked: dict) -> list[dict]:
    said: list[str] = []
    serve(Echo(), io.StringIO("".join(json.dumps(a) + "\n" for a in asked)), said.append)
    return [json.loads(line) for line in said]


OPEN = {"op": "open", "settings": {"model": "m", "threads": 2, "max_tokens": 4, "eos": [9], "methods": ["a"]}}


def test_every_line_gets_one_reply():
    asked = {"op": "answer", "method": "a", "prompt": [1, 2], "index": 0}
    assert replies(OPEN, asked) == [{"ok": {"threads": 2}}, {"ok": {"tokens": [1, 2, 9]}}]


def test_an_error_is_a_reply_and_the_next_line_is_answered():
    asked = {"op": "answer", "method": "a", "prompt": [1], "index": 1}
    said = replies(OPEN, asked, {"op": "__init__"}, {**asked, "index": 0})
    assert said[1] == {"error": "KeyError"} and "unknown op" in said[2]["error"] and "ok" in said[3]

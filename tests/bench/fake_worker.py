"""A worker whose peer needs no model: it answers from a rule, or misbehaves when the prompt says so."""

import os
import sys
import time

from draftwood.bench.spec.worker_main import main

FAIL, DIE, HANG = 901, 902, 903  # as the last token of a prompt


class Fake:
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def open(self, settings):
        if self.kind == "unopened":
            raise OSError("no such model")
        self.settings = settings
        return {"eos": [2], "kind": self.kind, "precision": f"of {self.kind}", "device": f"beside {self.kind}"}

    def encode(self, texts):
        return {"prompts": [[len(text), *(int(word) for word in text.split() if word.isdecimal())] for text in texts]}

    def answer(self, method, prompt, index):
        print("a library that talks")
        trouble = prompt[-1] if self.kind == "bad" else 0
        if trouble == FAIL:
            raise ValueError("out of words")
        if trouble == DIE:
            print("last words", file=sys.stderr, flush=True)
            os._exit(3)
        if trouble == HANG:
            time.sleep(60)
        tokens = [prompt[0], 7, 8 if method != "wrong" else 9]
        return {
            "tokens": tokens, "emitted": 3, "seconds": 0.3, "first_seconds": 0.1, "decode_seconds": 0.2, "passes": 3,
        }  # fmt: skip

    def judge(self, method, prompt, tokens, plain, index):
        same = tokens == plain
        return {"status": "identical" if same else "differs", "same_text": same, "compared": 3}


if __name__ == "__main__":
    main(Fake(sys.argv[1]))  # type: ignore[arg-type]

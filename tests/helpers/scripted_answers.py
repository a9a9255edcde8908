"""Answers as the API streams them, made of a text: rounds with trees, sources and times."""

import random
import re
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
NAMES = ("NGram", "Features")


def tokens_of(text: str) -> list[str]:
    return re.findall(r"\n+ *| *[^\s]{1,6}", text)


def rounds_of(tokens: list[str], seed: int = 1) -> Iterator[Json]:
    """Rounds that emit these tokens: trees whose accepted path is the text, with siblings that are not."""
    rnd, at, index = random.Random(seed), 0, 0
    while at < len(tokens):
        depth = rnd.choice((0, 2, 3, 4, 6))
        good = min(rnd.choice((0, 1, 2, 2, 3, 5)), depth, len(tokens) - at - 1)
        tree = Tree(rnd.randrange(2), rnd)
        path = tree.grow(tokens[at : at + good], depth)
        emitted = tokens[at : at + good + 1]
        draft, verify = 0.0003 + 0.0011 * depth, 0.0058 + 0.0001 * len(tree.texts)
        seconds = {"draft": draft, "verify": verify, "total": draft + verify + 0.0004}
        yield tree.as_round(index, path, emitted) | {"seconds": seconds}
        at, index = at + len(emitted), index + 1


class Tree:
    WORDS = (" the", " a", " of", ",", " lamp", " and", " sea", ".", " is", " to")

    def __init__(self, source: int, rnd: random.Random) -> None:
        self.texts: list[str] = []
        self.parents: list[int] = []
        self.probability: list[float | None] = []
        self.source, self.rnd = source, rnd

    def add(self, text: str, parent: int, probability: float) -> int:
        self.texts.append(text)
        self.parents.append(parent)
        self.probability.append(round(probability, 4) if self.source else None)
        return len(self.texts)

    def grow(self, good: list[str], depth: int) -> list[int]:
        last, path = 0, list[int]()
        for level in range(depth):
            best = self.rnd.uniform(0.3, 0.95)
            node = self.add(good[level] if level < len(good) else self.rnd.choice(self.WORDS), last, best)
            if level < len(good):
                path.append(node)
            for _ in range(self.rnd.choice((0, 1, 2)) if self.source else 0):
                other = self.add(self.rnd.choice(self.WORDS), last, (1 - best) * self.rnd.random())
                if self.rnd.random() < 0.4:
                    self.add(self.rnd.choice(self.WORDS), other, self.rnd.random())
            last = node
        return path

    def as_round(self, index: int, path: list[int], emitted: list[str]) -> Json:
        size = len(self.texts)
        return {
            "index": index,
            "choice": 0,
            "token_ids": list(range(size)),
            "texts": self.texts,
            "parents": self.parents,
            "sources": [self.source] * size,
            "accepted": path,
            "probability": self.probability,
            "emitted": emitted,
        }


def answer(text: str, *, pause: float = 0.0, speculation: bool = True) -> Iterator[Json | float]:
    """Chunks of an answer; a number is a pause in seconds."""
    tokens = tokens_of(text)
    rounds = list(rounds_of(tokens)) if speculation else list(plain_rounds(tokens))
    for each in rounds:
        yield pause
        yield chunk(each)
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "finish_detail": "eos"}]}
    drafted = sum(len(each["parents"]) for each in rounds)
    accepted = sum(len(each["accepted"]) for each in rounds)
    yield {
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": len(tokens), "total_tokens": 9 + len(tokens)},
        "metrics": {"speculative_decoding": {"draft_acceptance_rate": accepted / drafted if drafted else None}},
    }


def plain_rounds(tokens: list[str]) -> Iterator[Json]:
    for index, token in enumerate(tokens):
        nothing = Tree(0, random.Random(1)).as_round(index, [], [token])
        yield nothing | {"seconds": {"draft": 0.0, "verify": 0.006, "total": 0.006}}


def chunk(one: Json) -> Json:
    sources = [one["sources"][node - 1] for node in one["accepted"]] + [-1]
    told = [token(text, source, one["index"]) for text, source in zip(one["emitted"], sources, strict=True)]
    content = "".join(one["emitted"])
    return {"choices": [{"index": 0, "delta": {"content": content}, "provenance": told}], "rounds": [one]}


def token(text: str, source: int, index: int, name: str | None = None) -> Json:
    known = "target" if source < 0 else name or NAMES[source]
    return {"token_id": 0, "text": text, "source": source, "source_name": known, "round": index}

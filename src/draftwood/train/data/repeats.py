"""Removes repetition from what the target writes.

An answer that reached its length limit ends in a loop if its tail repeats with a period p <= 64 over at least max(64, 3 p)
tokens. It is cut after the loop's first period and two more, at least 8 tokens: a little repetition is worth training on.
An answer that ended by itself is never cut.

    tail 64+  | a b c a b c a b c a b c ...           p = 3
    kept      | a b c a b c a b c
"""

import re

import numpy as np

TAIL, LONGEST = 64, 64
EXTRA, EXTRA_TOKENS = 2, 8


def without_loop(tokens: list[int]) -> list[int]:
    """The tokens without the loop they end in; the same list if there is none."""
    ids = np.asarray(tokens)
    for period in range(1, LONGEST + 1):
        if len(ids) < max(TAIL, 3 * period):
            return tokens
        same = ids[period:] == ids[:-period]
        if not same[-1]:
            continue
        differ = np.flatnonzero(~same)
        first = int(differ[-1]) + 1 if len(differ) else 0  # start of the loop's first period
        if len(ids) - first >= max(TAIL, 3 * period):
            return tokens[: first + period + max(EXTRA * period, EXTRA_TOKENS)]
    return tokens


def whole_sentences(text: str) -> str:
    """The text up to its last complete sentence."""
    found = re.match(r"(?s).*[.!?](?=\s|$)", text)
    return found[0] if found else ""


def without_repeats(text: str) -> str:
    """The text up to the first repeated sentence or list item; the items' numbers are ignored."""
    seen: set[str] = set()
    for found in re.finditer(r"[^.!?\n]{16,}[.!?\n]*", text):
        said = " ".join(re.findall(r"[^\W\d_]+", found[0].lower()))
        if said in seen:
            return re.sub(r"\s*(\n\s*(\d+\.|[-*])?)?[\s*]*$", "", text[: found.start()])
        seen.add(said)
    return text

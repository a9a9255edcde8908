"""Answers that run in circles. A few rounds are worth learning, two hundred tokens of them are not.

The rule: an answer that was cut off at its length limit is in a loop when its tail repeats with some period p <= 64 over at
least max(64, 3 p) tokens. It is cut back to the loop's first round and two more, at least 8 tokens of them. What ended by
itself is never cut.

    tail 64+  | a b c a b c a b c a b c ...           p = 3
    kept      | a b c a b c a b c
"""

import re

import numpy as np

TAIL, LONGEST = 64, 64
EXTRA, EXTRA_TOKENS = 2, 8


def without_loop(tokens: list[int]) -> list[int]:
    """The tokens, cut back if they end in a loop; the same list if they do not."""
    ids = np.asarray(tokens)
    for period in range(1, LONGEST + 1):
        if len(ids) < max(TAIL, 3 * period):
            return tokens
        same = ids[period:] == ids[:-period]
        if not same[-1]:
            continue
        differ = np.flatnonzero(~same)
        first = int(differ[-1]) + 1 if len(differ) else 0  # the loop's first round begins here
        if len(ids) - first >= max(TAIL, 3 * period):
            return tokens[: first + period + max(EXTRA * period, EXTRA_TOKENS)]
    return tokens


def whole_sentences(text: str) -> str:
    """Up to the last sentence that ends."""
    found = re.match(r"(?s).*[.!?](?=\s|$)", text)
    return found[0] if found else ""


def without_repeats(text: str) -> str:
    """Up to the first sentence, or line of a list, that was said before: numbers in front of it make no difference."""
    seen: set[str] = set()
    for found in re.finditer(r"[^.!?\n]{16,}[.!?\n]*", text):
        said = " ".join(re.findall(r"[^\W\d_]+", found[0].lower()))
        if said in seen:
            return re.sub(
                r"\s*(\n\s*(\d+\.|[-*])?)?[\s*]*$", "", text[: found.start()]
            )  # nor the number of a next line
        seen.add(said)
    return text

"""A chat template cut into the pieces that a growing dialogue is made of.

    [system ... user header] question [end, assistant header] answer [end, user header] question [end, assistant header] ...
     `header`                                                         `next_header`

User turns are rendered and encoded as a whole, as an engine does. Answers keep the token ids that the target wrote.
"""

import hashlib
import re
from collections.abc import Sequence
from itertools import takewhile

from draftwood.errors import TokenizerError
from draftwood.models.loading.tokenizer import Tokenizer

_ANSWER = "sentinelassistantwords"


def key_of(turn: str) -> str:
    """A hash of a user turn's letters and digits in lower case, to recognise duplicates."""
    words = re.sub(r"[\W_]+", " ", turn.casefold()).strip()
    return hashlib.blake2b((words or turn).encode(errors="replace"), digest_size=10).hexdigest()


class Turns:
    """Encodes conversations with one tokenizer. `ends` are the end-of-turn tokens."""

    def __init__(self, tokenizer: Tokenizer, ends: Sequence[int]) -> None:
        self.tokenizer, self.ends = tokenizer, frozenset(ends)
        self.header, self.next_header = (
            shared_prefix(*map(encode, ("yes", "No", "3"))) for encode in (self.first, self.next)
        )
        if not self.header or not self.next_header:
            raise TokenizerError("the chat template has no header before a user turn, so the target cannot write one")

    def render(self, turn: str) -> str:
        """A first user turn rendered up to the start of the answer."""
        return self.tokenizer.render([{"role": "user", "content": turn}])

    def first(self, turn: str) -> list[int]:
        return self.tokenizer.encode(self.render(turn))

    def first_of_many(self, turns: Sequence[str]) -> list[list[int]]:
        """The same for many turns, in parallel."""
        texts = [self.render(turn) for turn in turns]
        return [found.ids for found in self.tokenizer.backend.encode_batch(texts, add_special_tokens=False)]

    def next(self, turn: str) -> list[int]:
        """The tokens between an answer and the next one: end of turn, user turn, assistant header."""
        talk = [("user", "hello"), ("assistant", _ANSWER), ("user", turn)]
        text = self.tokenizer.render([{"role": role, "content": content} for role, content in talk])
        _, sign, after = text.partition(_ANSWER)
        if not sign:
            raise TokenizerError(f"the chat template drops earlier answers: {text[:200]!r}")
        return self.tokenizer.encode(after)

    def continued(self, answer: list[int], tail: list[int]) -> tuple[list[int], list[int]]:
        """(the answer inside a longer dialogue, the tokens after it). The end token belongs to the answer if the template
        writes it too, and is dropped otherwise."""
        if answer and answer[-1] in self.ends:
            return (answer, tail[1:]) if tail[0] == answer[-1] else (answer[:-1], tail)
        return answer, tail

    def words(self, ids: Sequence[int]) -> str:
        """The text of a turn, without end-of-turn tokens."""
        return self.tokenizer.decode([i for i in ids if i not in self.ends]).strip()


def shared_prefix(*texts: list[int]) -> list[int]:
    """The tokens that all texts begin with."""
    columns = takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))
    return [column[0] for column in columns]

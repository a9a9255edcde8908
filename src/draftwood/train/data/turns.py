"""Turns: a chat template cut into the pieces that a growing dialogue is made of.

    [system ... user header] question [end, assistant header] answer [end, user header] question [end, assistant header] ...
     `header`                                                         `next_header`

Ids of a user's words always come from rendering and encoding the whole turn, as an engine does it when it serves; the
answers stay the ids that the target wrote.
"""

import hashlib
import re
from collections.abc import Sequence

from draftwood.errors import TokenizerError
from draftwood.models.loading.tokenizer import Tokenizer

_SAID = "sentinelassistantwords"


def key_of(turn: str) -> str:
    """A user turn's name for telling duplicates: letters and digits alone, small, hashed."""
    words = re.sub(r"[\W_]+", " ", turn.casefold()).strip()
    return hashlib.blake2b((words or turn).encode(errors="replace"), digest_size=10).hexdigest()


class Turns:
    """One tokenizer's conversations. `ends` are the tokens with which the target ends a turn."""

    def __init__(self, tokenizer: Tokenizer, ends: Sequence[int]) -> None:
        self.tokenizer, self.ends = tokenizer, frozenset(ends)
        self.header = _shared(self.first("yes"), self.first("No"), self.first("3"))
        self.next_header = _shared(self.next("yes"), self.next("No"), self.next("3"))
        if not self.header or not self.next_header:
            raise TokenizerError(
                "the chat template writes nothing before a user's turn, so the target cannot write one"
            )

    def render(self, turn: str) -> str:
        """A first user turn and all around it up to the answer."""
        return self.tokenizer.render([{"role": "user", "content": turn}])

    def first(self, turn: str) -> list[int]:
        return self.tokenizer.encode(self.render(turn))

    def first_of_many(self, turns: Sequence[str]) -> list[list[int]]:
        """The same for many turns, on all cores."""
        texts = [self.render(turn) for turn in turns]
        return [found.ids for found in self.tokenizer.backend.encode_batch(texts, add_special_tokens=False)]

    def next(self, turn: str) -> list[int]:
        """What stands between the last word of an answer and the first of the next."""
        talk = [("user", "hello"), ("assistant", _SAID), ("user", turn)]
        text = self.tokenizer.render([{"role": role, "content": content} for role, content in talk])
        _, sign, after = text.partition(_SAID)
        if not sign:
            raise TokenizerError(f"the chat template loses earlier answers: {text[:200]!r}")
        return self.tokenizer.encode(after)

    def continued(self, answer: list[int], tail: list[int]) -> tuple[list[int], list[int]]:
        """(the answer as it stands in a longer dialogue, what follows it). The end token is the answer's if the template
        writes it; where the template ends turns by other means, it is nobody's."""
        if answer and answer[-1] in self.ends:
            return (answer, tail[1:]) if tail[0] == answer[-1] else (answer[:-1], tail)
        return answer, tail

    def words(self, ids: Sequence[int]) -> str:
        """The text of a turn that the target wrote."""
        return self.tokenizer.decode([i for i in ids if i not in self.ends]).strip()


def _shared(*texts: list[int]) -> list[int]:
    same = 0
    while same < min(map(len, texts)) and len({text[same] for text in texts}) == 1:
        same += 1
    return texts[0][:same]

"""Talk: a conversation with one model, turn by turn; and `run`, by which all commands get their answers."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from draftwood.errors import OptionError

if TYPE_CHECKING:
    from draftwood.core.sampling.params import SamplingParams
    from draftwood.llm import LLM
    from draftwood.results import Piece, Prompt, Result

Show = Callable[["Piece"], None]


def run(
    llm: "LLM",
    prompt: "Prompt",
    params: "SamplingParams",
    *,
    until: threading.Event | None = None,
    show: Show | None = None,
) -> "Result":
    """One answer; `show` gets each token as it comes. Text held back for a stop string is in the result only."""
    result = None
    for chunk in llm.stream(prompt, params, until=until):
        result = chunk.result
        if show is not None:
            for piece in chunk.pieces:
                show(piece)
    assert result is not None
    return result


class Talk:
    """Messages so far. With `raw` there is no template: the texts follow each other directly."""

    def __init__(self, llm: "LLM", *, system: str | None = None, raw: bool = False) -> None:
        if raw and system is not None:
            raise OptionError("a system message needs the chat template\nhint: leave out --system or --raw")
        self.llm, self.system, self.raw = llm, system, raw
        self.turns: list[tuple[str, str]] = []  # what the user said, what was answered

    def prompt(self, text: str) -> "Prompt":
        """The model's whole input for the next turn."""
        if self.raw:
            return "".join(user + answer for user, answer in self.turns) + text
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for user, answer in self.turns:
            messages += [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
        return self.llm.chat_prompt([*messages, {"role": "user", "content": text}])

    def ask(
        self, text: str, params: "SamplingParams", *, until: threading.Event | None = None, show: Show | None = None
    ) -> "Result":
        """The next answer, kept in the conversation; an interrupted one as far as it got."""
        result = run(self.llm, self.prompt(text), params, until=until, show=show)
        if result.error is None:
            self.turns.append((text, result.text))
        return result

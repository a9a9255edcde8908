"""Prompts and conversations as users write them: texts, token ids in lists or arrays, chat messages."""

from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any

from draftwood.errors import OptionError
from draftwood.results import Prompt

Message = Mapping[str, Any]
Conversation = str | Sequence[Message]

A_MESSAGE = 'hint: [{"role": "user", "content": "Hi"}]'


def split_prompts(given: Any) -> tuple[list[Prompt], bool]:
    """The prompts, and whether there is only one: a text, or token ids in a flat list or array.

    A list of texts or id lists, or an array with two dimensions, holds one prompt per entry.
    """
    if isinstance(given, str):
        return [given], True
    given = as_list(given)
    if not isinstance(given, Iterable) or isinstance(given, bytes | Mapping):
        raise OptionError(f"a prompt cannot be {_shown(given)}\nhint: a text, a list of texts, or lists of token ids")
    entries = list(given)
    if entries and all(_is_id(entry) for entry in entries):
        return [token_ids(entries)], True
    return [entry if isinstance(entry, str) else token_ids(entry) for entry in entries], False


def token_ids(given: Any) -> list[int]:
    """Ids as whole numbers of Python, from any sequence or one-dimensional array of them."""
    entries = as_list(given)
    if not isinstance(entries, Iterable) or isinstance(entries, str | bytes | Mapping):
        raise OptionError(f"a prompt cannot be {_shown(given)}\nhint: a text or token ids: [1, 2, 3]")
    found = list(entries)
    wrong = [entry for entry in found if not _is_id(entry)]
    if wrong:
        raise OptionError(f"a token id cannot be {_shown(wrong[0])}\nhint: a prompt is a text or whole numbers: [1, 2]")
    return [index(entry) for entry in found]


def split_conversations(given: Any) -> tuple[list[Conversation], bool]:
    """The conversations, and whether there is only one: a text, or a list of messages."""
    if isinstance(given, str):
        return [given], True
    if isinstance(given, Mapping):
        raise OptionError(f"a conversation is a list of messages, this is one message: {_shown(given)}\n{A_MESSAGE}")
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise OptionError(f"a conversation cannot be {_shown(given)}\n{A_MESSAGE}, or a text")
    if not given:
        raise OptionError(f"the conversation is empty\n{A_MESSAGE}")
    if any(isinstance(entry, Mapping) for entry in given):
        return [given], True
    return list(given), False


def messages_of(conversation: Any) -> list[dict[str, Any]]:
    """Messages whose contents are texts. A text alone is one message of the user."""
    if isinstance(conversation, str):
        return [{"role": "user", "content": conversation}]
    if not isinstance(conversation, Sequence) or not all(isinstance(m, Mapping) for m in conversation):
        raise OptionError(f"a conversation cannot be {_shown(conversation)}\n{A_MESSAGE}, or a text")
    if not conversation:
        raise OptionError(f"the conversation is empty\n{A_MESSAGE}")
    return [{**message, **_content(message)} for message in conversation]


def _content(message: Message) -> dict[str, str]:
    """Content in parts as one text, a line each, which is how vLLM joins them."""
    content = message.get("content", "")  # some messages carry something else, for example the call of a tool
    if isinstance(content, str) or (content is None and message.get("role") != "user"):
        return {}
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise OptionError(f"the content of a message cannot be {_shown(content)}\n{A_MESSAGE}")
    texts: list[str] = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise OptionError(
                f"a content part cannot be {_shown(part)}\n"
                'hint: models here read text only: {"type": "text", "text": "Hi"}'
            )
        texts.append(part["text"])
    return {"content": "\n".join(texts)}


def as_list(given: Any) -> Any:
    """Arrays of numpy and torch (and whatever else has `tolist`) as lists."""
    return given.tolist() if hasattr(given, "tolist") else given


def _is_id(entry: Any) -> bool:
    """Whether this is one whole number, of Python, numpy or torch."""
    if isinstance(entry, bool | str) or getattr(entry, "ndim", 0):
        return False
    try:
        index(entry)
    except (TypeError, ValueError):
        return False
    return True


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""A model's tokenizer and chat template, read from its folder with the `tokenizers` library alone.

Decoding ignores `clean_up_tokenization_spaces` of tokenizer_config.json, which would change the model's text.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from draftwood.core.config import ModelConfig
from draftwood.errors import OptionError, TokenizerError
from draftwood.models.loading.chat_template import ChatTemplate, Message
from draftwood.models.loading.checkpoint import read_json
from draftwood.models.loading.detokenizer import Decoding, Detokenizer

__all__ = ["Detokenizer", "Tokenizer"]

SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """Text to ids and back. Never truncates, pads or adds tokens by itself."""

    def __init__(
        self, backend: Backend, *, special: Mapping[str, str], adds_bos: bool | None, chat: ChatTemplate | None
    ) -> None:
        self.backend = backend
        self.special = dict(special)  # bos_token, eos_token, ... -> their texts
        ids = {name: backend.token_to_id(text) for name, text in special.items()}
        self.bos_token_id: int | None = ids.get("bos_token")
        self.eos_token_ids: tuple[int, ...] = tuple(i for i in (ids.get("eos_token"),) if i is not None)
        self.template = chat
        self._wants_bos = adds_bos  # None: the backend's post-processor decides
        # Only the decoder's JSON: the whole tokenizer's takes a tenth of a second.
        self._decoding = Decoding(None if backend.decoder is None else json.loads(backend.decoder.__getstate__()))
        self._hidden = frozenset(
            token.content for token in backend.get_added_tokens_decoder().values() if token.special
        )

    @classmethod
    def from_folder(cls, path: Path | str) -> "Tokenizer":
        """Read tokenizer.json and its companion files; TokenizerError names the file that is missing or broken."""
        folder = Path(path)
        file = folder / "tokenizer.json"
        if not file.is_file():
            hint = "is the download complete?"
            if (folder / "tokenizer.model").is_file():
                hint = "save it with transformers to turn tokenizer.model into tokenizer.json"
            raise TokenizerError(f"{folder}: no tokenizer.json\nhint: {hint}")
        try:
            backend = Backend.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"{file}: not a tokenizer: {error}") from error
        backend.no_truncation()
        backend.no_padding()
        config = read_json(folder / "tokenizer_config.json")
        special = _special(read_json(folder / "special_tokens_map.json") | config)
        source = _template(folder, config)
        chat = ChatTemplate(source, special) if source is not None else None
        adds_bos = config.get("add_bos_token")
        return cls(backend, special=special, adds_bos=adds_bos if isinstance(adds_bos, bool) else None, chat=chat)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max(self.backend.get_vocab().values(), default=-1) + 1

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the vocabulary, every id with its token: equal for two packagings in which ids mean the same."""
        tokens = sorted(self.backend.get_vocab().items(), key=lambda item: item[::-1])
        return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]

    @property
    def control_tokens(self) -> tuple[int, ...]:
        """Special tokens, which are never part of the visible text."""
        return tuple(sorted(i for i, token in self.backend.get_added_tokens_decoder().items() if token.special))

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Ids of a text. `special` adds the special tokens of a prompt (the bos token, if the model uses one).

        Special tokens spelt out in the text are recognised either way, as in rendered chats. A rendered chat already
        holds its bos token, so it is encoded without `special`.
        """
        by_backend = special and self._wants_bos is not False
        try:
            ids = self.backend.encode(text, add_special_tokens=by_backend).ids
        except TypeError as error:  # not a string, or half a surrogate pair in it
            raise OptionError(
                f"text cannot be encoded: {text[:80]!r}\nhint: it must be a str of valid Unicode"
            ) from error
        bos = self.bos_token_id
        if special and self._wants_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of ids; special tokens are left out unless asked for. Ids of no token decode to nothing."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special)

    def spellings(self, word: str | Sequence[int]) -> list[Sequence[int]]:
        """Ids of a word that is to be forbidden, at the start of a text and after a space. Ids stay as they are."""
        if not isinstance(word, str):
            return [word]
        if not word.strip():
            raise OptionError(f"bad_words cannot hold {word!r}\nhint: words, or lists of token ids")
        return [ids for w in (word, " " + word.lstrip()) if (ids := self.encode(w))]

    def detokenizer(self, skip_special: bool = True) -> Detokenizer:
        """A fresh incremental decoder, whose texts add up to what `decode` gives."""
        return Detokenizer(self._decoding, self.backend.id_to_token, self._hidden if skip_special else frozenset())

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds in the middle of a text; may be part of a character."""
        text = self.backend.id_to_token(token)
        if text is None:
            return b""
        return text.encode() if text in self._hidden else self._decoding.token_bytes(text)

    def token_text(self, token: int) -> str:
        """The same as text; part of a character becomes U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """A conversation as prompt text, by the model's own template."""
        if self.template is None:
            raise TokenizerError(
                "this model has no chat template\n"
                "hint: give a plain prompt instead, or put a chat_template.jinja into its folder"
            )
        return self.template.render(messages, add_generation_prompt, **variables)

    def encode_chat(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """Ids of a conversation."""
        return self.encode(self.render(messages, add_generation_prompt, **variables))

    def check(self, config: ModelConfig) -> None:
        """TokenizerError if an id is outside the model's vocabulary, or if the chat template loses text."""
        if self.vocab_size > config.vocab_size:
            last = self.backend.id_to_token(self.vocab_size - 1)
            raise TokenizerError(
                f"the tokenizer does not fit the model: its last token {last!r} has id {self.vocab_size - 1}, "
                f"the model's vocabulary has {config.vocab_size} tokens\n"
                "hint: tokenizer.json and config.json belong to different models"
            )
        for token in config.eos_token_ids:
            if self.backend.id_to_token(token) is None:
                raise TokenizerError(
                    f"the tokenizer does not fit the model: eos_token_id {token} of config.json is not in tokenizer.json\n"
                    "hint: tokenizer.json and config.json belong to different models"
                )
        if self.template is not None:
            self.template.check()


def _special(config: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in SPECIAL:
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value  # both spellings are in use
        if isinstance(value, str):
            found[name] = value
    return found


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The file wins over the config, as in transformers; of several named templates, the default."""
    try:
        return (folder / "chat_template.jinja").read_text("utf-8")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{folder / 'chat_template.jinja'}: cannot be read: {error}") from error
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default", next(iter(named.values())) if len(named) == 1 else None)
    return source if isinstance(source, str) else None

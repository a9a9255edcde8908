"""Text from token ids as they arrive: never half a character, and in total exactly what decoding all ids at once gives.

The decoder of the tokenizer runs as a chain of stages. Each holds back only what later tokens can still change:

    byte-level (GPT-2, Llama 3, Qwen)    the bytes of an unfinished character
    byte fallback (Llama 2, Mistral)     a run of <0xNN> tokens: an invalid byte changes the text of the whole run
    strip                                nothing

The work per token does not grow with the length of the text. `tokenizers.decoders.DecodeStream` is not used, because it
cannot be flushed at the end and raises on some runs of byte tokens; a test shows both.
"""

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from draftwood.errors import TokenizerError


def _byte_letters() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes are themselves, the others are letters from U+0100 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_LETTERS = _byte_letters()
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def level_bytes(token: str) -> bytes:
    """The bytes of a byte-level token; one with a letter outside the alphabet (an added token) is plain text."""
    try:
        return bytes(BYTE_LETTERS[letter] for letter in token)
    except KeyError:
        return token.encode()


class Stage(ABC):
    """One step of a decoder, fed token by token. Most hold nothing back."""

    @abstractmethod
    def push(self, token: str) -> list[str]: ...

    def flush(self) -> list[str]:
        return []


class _Each(Stage):
    """Changes every token by itself, the first one by `first` if given."""

    def __init__(self, change: Callable[[str], str], first: Callable[[str], str] | None = None) -> None:
        self.change = change
        self.next = first or change

    def push(self, token: str) -> list[str]:
        change, self.next = self.next, self.change
        return [change(token)]


class _ByteLevel(Stage):
    """Byte-level tokens to characters; invalid bytes become U+FFFD as soon as they are recognised."""

    def __init__(self) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: str) -> list[str]:
        return [self.decoder.decode(level_bytes(token))]

    def flush(self) -> list[str]:
        return [self.decoder.decode(b"", final=True)]


class _ByteFallback(Stage):
    """<0xNN> tokens to characters. A run that is not UTF-8 as a whole becomes one U+FFFD for each of its bytes."""

    def __init__(self) -> None:
        self.run = bytearray()

    def push(self, token: str) -> list[str]:
        match = BYTE_TOKEN.fullmatch(token)
        if match:
            self.run.append(int(match[1], 16))
            return []
        return [*self.flush(), token]

    def flush(self) -> list[str]:
        run, self.run = bytes(self.run), bytearray()
        try:
            return [run.decode()] if run else []
        except UnicodeDecodeError:
            return ["\ufffd"] * len(run)


class _StripStart(Stage):
    """Removes up to `count` leading `letter`s of the whole text."""

    def __init__(self, letter: str, count: int) -> None:
        self.letter = letter
        self.left = count

    def push(self, token: str) -> list[str]:
        while self.left and token:
            if token[0] == self.letter:
                token = token[1:]
                self.left -= 1
            else:
                self.left = 0
        return [token]


class Decoding:
    """A tokenizer's decoder, read once from its JSON. Makes the stages of each detokenizer and holds no text."""

    def __init__(self, decoder: dict[str, Any] | None) -> None:
        self.parts = [] if decoder is None else decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        self.joins_with_spaces = decoder is None  # what the tokenizers library does without a decoder
        self.stages()  # refuses an unknown decoder before the first token

    def stages(self) -> list[Stage]:
        """A fresh chain."""
        if self.joins_with_spaces:
            return [_Each(lambda token: " " + token, first=lambda token: token)]
        chain: list[Stage] = []
        fused = False
        for part in self.parts:
            kind = part["type"]
            if kind == "Fuse":
                fused = True
            else:
                chain.append(self._stage(kind, part, fused))
                fused = fused or kind == "ByteLevel"  # its output is one text, not tokens
        return chain

    def _stage(self, kind: str, part: dict[str, Any], fused: bool) -> Stage:
        if kind == "ByteLevel" and not fused:
            return _ByteLevel()
        if kind == "ByteFallback" and not fused:
            return _ByteFallback()
        if kind == "Metaspace" and not fused:
            mark, never = part["replacement"], part.get("prepend_scheme", "always") == "never"
            return _Each(
                lambda token: token.replace(mark, " "), lambda token: token.replace(mark, " " if never else "")
            )
        if kind == "Replace" and "String" in part["pattern"] and (not fused or len(part["pattern"]["String"]) == 1):
            return _Each(lambda token: token.replace(part["pattern"]["String"], part["content"]))
        if kind == "Strip" and part["stop"] == 0:
            if fused:
                return _StripStart(part["content"], part["start"])
            return _Each(lambda token: "".join(_StripStart(part["content"], part["start"]).push(token)))
        raise TokenizerError(
            f"tokenizer.json: decoder {part} cannot be run token by token\n"
            "hint: supported are ByteLevel, ByteFallback, Metaspace, Replace, Fuse and Strip at the start"
        )

    def token_bytes(self, token: str) -> bytes:
        """The bytes that one token adds in the middle of a text; may be part of a character."""
        for part in self.parts:
            if part["type"] == "ByteLevel":
                return level_bytes(token)
            match = BYTE_TOKEN.fullmatch(token)
            if part["type"] == "ByteFallback" and match:
                return bytes([int(match[1], 16)])
            if part["type"] == "Metaspace":
                token = token.replace(part["replacement"], " ")
            elif part["type"] == "Replace":
                token = token.replace(part["pattern"]["String"], part["content"])
        return token.encode()


class Detokenizer:
    """The text of one growing sequence. `push` tokens as they arrive, `flush` once at the end.

    All texts returned together are exactly `Tokenizer.decode` of all ids.
    """

    def __init__(
        self, decoding: Decoding, token_of: Callable[[int], str | None], skipped: frozenset[str] = frozenset()
    ) -> None:
        self._chain = decoding.stages()
        self._token_of = token_of
        self._skipped = skipped

    def push(self, ids: Iterable[int]) -> str:
        """The text that is final after these tokens and was not before."""
        return "".join(self.pieces(ids))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The same, one text per token; empty in the middle of a character."""
        return [self._one(token) for token in ids]

    def flush(self) -> str:
        """The rest of the text, which was held back."""
        tokens: list[str] = []
        for stage in self._chain:
            tokens = [out for token in tokens for out in stage.push(token)] + stage.flush()
        return "".join(tokens)

    def _one(self, token_id: int) -> str:
        token = self._token_of(token_id)
        if token is None or token in self._skipped:  # an id of no token decodes to nothing, as in the library
            return ""
        tokens = [token]
        for stage in self._chain:
            tokens = [out for token in tokens for out in stage.push(token)]
        return "".join(tokens)

"""Turns the vocabulary inside a GGUF file into tokenizer.json and tokenizer_config.json.

Two kinds exist in the files we read: "gpt2", byte-level BPE with its merges written out, and "llama", SentencePiece,
where any two tokens whose text together is a token may merge, ranked by that token's score. The file only names the rule
that splits text into words before merging (`tokenizer.ggml.pre`). An unknown name is refused, because a wrong rule gives
ids that are rare in the training data, without any visible error.
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from draftwood.errors import TokenizerError
from draftwood.models.loading.gguf.header import Header

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Llama 3's rule, with the one thing that Qwen changes: how many digits may stand together.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE: dict[str, str] = {
    "default": "gpt-2",  # what old files say, or leave out
    "gpt-2": "gpt-2",
    "smollm": "smollm",
    "qwen2": "qwen2",
    "llama-bpe": "llama-bpe",
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
}


def convert(header: Header) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer of a GGUF file, and what belongs into its tokenizer_config.json."""
    vocabulary = _Vocabulary(header)
    kind = header.metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer, adds_bos = _byte_level(vocabulary)
    elif kind == "llama":
        tokenizer, adds_bos = _sentencepiece(vocabulary)
    else:
        raise TokenizerError(
            f"{header.path}: tokenizer kind {kind!r} is not supported; known: gpt2, llama\n"
            "hint: use the Hugging Face folder of the same model"
        )
    tokenizer.add_tokens(vocabulary.added())
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        text = vocabulary.named(key)
        if text is not None:
            config[f"{name}_token"] = text
    adds_bos = bool(header.metadata.get("tokenizer.ggml.add_bos_token", adds_bos)) and "bos_token" in config
    config["add_bos_token"] = adds_bos
    if adds_bos:
        bos = config["bos_token"]
        special = [(bos, tokenizer.token_to_id(bos))]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=special
        )
    template = header.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
    return tokenizer, config


class _Vocabulary:
    """The token arrays of a header, checked against each other."""

    def __init__(self, header: Header) -> None:
        self.path = header.path
        self.metadata: Mapping[str, Any] = header.metadata
        self.tokens: list[str] = self._strings("tokens")
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        if len(self.ids) < len(self.tokens):
            twice = next(token for index, token in enumerate(self.tokens) if self.ids[token] != index)
            raise TokenizerError(f"{self.path}: tokenizer.ggml.tokens lists {twice!r} twice")
        self.types: list[int] = [int(kind) for kind in self._numbers("token_type", NORMAL)]

    def _strings(self, key: str) -> list[str]:
        found = self.metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(found, list) or not found or not isinstance(found[0], str):
            raise TokenizerError(f"{self.path}: tokenizer.ggml.{key} is missing\nhint: this file carries no tokenizer")
        return found

    def _numbers(self, key: str, default: int | None = None) -> Any:
        found = self.metadata.get(f"tokenizer.ggml.{key}")
        if found is None and default is not None:
            return [default] * len(self.tokens)
        if found is None or isinstance(found, (str, int, float)) or len(found) != len(self.tokens):
            raise TokenizerError(
                f"{self.path}: tokenizer.ggml.{key} does not have one number for each of {len(self.tokens)} tokens"
            )
        return found

    def scores(self) -> list[float]:
        return [float(score) for score in self._numbers("scores")]

    def merges(self) -> list[tuple[str, str]]:
        pairs: list[tuple[str, str]] = []
        for merge in self._strings("merges"):
            left, _, right = merge.partition(" ")
            if left not in self.ids or right not in self.ids or left + right not in self.ids:
                raise TokenizerError(
                    f"{self.path}: tokenizer.ggml.merges: {merge!r} does not join two tokens into a third"
                )
            pairs.append((left, right))
        return pairs

    def named(self, key: str) -> str | None:
        """The text of a special token named by the file."""
        index = self.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is None:
            return None
        if not isinstance(index, int) or not 0 <= index < len(self.tokens):
            raise TokenizerError(
                f"{self.path}: tokenizer.ggml.{key}_token_id = {index!r} is not one of {len(self.tokens)} tokens"
            )
        return self.tokens[index]

    def added(self) -> list[AddedToken]:
        """Tokens matched in the text before anything else: control tokens, hidden in output, and user-defined ones."""
        return [
            AddedToken(token, special=kind == CONTROL, normalized=False)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind in (CONTROL, USER_DEFINED)
        ]


def _byte_level(vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    name = vocabulary.metadata.get("tokenizer.ggml.pre", "default")
    pre = PRE.get(name) if isinstance(name, str) else None
    if pre is None:
        raise TokenizerError(
            f"{vocabulary.path}: tokenizer.ggml.pre {name!r} is not supported; known: {', '.join(PRE)}\n"
            "hint: use the Hugging Face folder of the same model, whose tokenizer.json says how words are cut"
        )
    llama3 = pre == "llama-bpe"
    # Llama 3 was trained with a vocabulary whose whole words win over its merges.
    tokenizer = Tokenizer(BPE(vocab=vocabulary.ids, merges=vocabulary.merges(), ignore_merges=llama3))
    if pre == "gpt-2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    else:
        words = Regex(_WORDS.format(digits=r"\p{N}{1,3}" if llama3 else r"\p{N}"))
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(words, "isolated"), byte_level])
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, llama3


def _sentencepiece(vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    unknown = vocabulary.named("unknown")
    if unknown is None and UNKNOWN in vocabulary.types:
        unknown = vocabulary.tokens[vocabulary.types.index(UNKNOWN)]
    model = BPE(
        vocab=vocabulary.ids, merges=_merges_by_score(vocabulary), unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    prefix = bool(vocabulary.metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer, True


def _merges_by_score(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the best-scored token first, then the more frequent halves."""
    scores = vocabulary.scores()
    plain = {
        token: index for token, index in vocabulary.ids.items() if vocabulary.types[index] in (NORMAL, USER_DEFINED)
    }
    ways: list[tuple[float, int, int, str, str]] = []
    for token, index in plain.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in plain and right in plain:
                ways.append((-scores[index], plain[left], plain[right], left, right))
    return [(left, right) for *_, left, right in sorted(ways)]

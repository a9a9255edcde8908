"""The user's texts, cut into passages: prose at paragraph borders, code at top-level definitions.

Sizes are given in tokens and measured in characters, by a ratio taken from a sample, so that only passages that become
prompts are tokenised. Repeated paragraphs (mostly licences) and those that are not sentences are left out.
"""

import os
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from draftwood.errors import OptionError
from draftwood.models.loading.tokenizer import Tokenizer
from draftwood.train.data.chat_turns import key_of
from draftwood.train.data.templates import corpus

PROSE = {".txt", ".md", ".rst", ".adoc"}
CODE = {
    ".py": "Python", ".c": "C", ".h": "C", ".cpp": "C++", ".cc": "C++", ".hpp": "C++", ".js": "JavaScript", ".go": "Go",
    ".ts": "TypeScript", ".java": "Java", ".rs": "Rust", ".sh": "shell", ".sql": "SQL", ".rb": "Ruby", ".pl": "Perl",
}  # fmt: skip
BARE = re.compile(r"(README|NEWS|FAQ|HACKING|CONTRIBUTING|INTRO|OVERVIEW|HISTORY|ABOUT)", re.IGNORECASE)
SMALLEST, LARGEST = 300, 2 << 20  # bytes of a file
MOST_FILES, MOST_PASSAGES, PER_FILE = 8_000, 24_000, 16
SHORT, LONG = 60, 900  # tokens of a passage
LARGE_SHARE = 0.3  # of the passages are drawn with nearly half of the maximum size or more
SAMPLE = 40


@dataclass(frozen=True, slots=True)
class Passage:
    text: str
    code: bool = False
    language: str = ""  # of code; of prose, if it is not English
    file: int = 0  # number of the file


@dataclass(frozen=True, slots=True)
class Texts:
    """Passages of all files, and proper names in them."""

    num_files: int = 0
    passages: tuple[Passage, ...] = ()
    names: tuple[str, ...] = ()
    letters: int = 0  # maximum characters of a passage


def read_texts(paths: Sequence[Path], tokenizer: Tokenizer, seed: int = 0, longest: int = LONG) -> Texts:
    """Passages of `SHORT` to `longest` tokens, a function of files and seed. OptionError if there are none."""
    if not paths:
        return Texts()
    rng = random.Random(f"texts:{seed}")
    files = _files(paths)
    rng.shuffle(files)
    read = [(path, text) for path in files[:MOST_FILES] if (text := _read(path)) is not None]
    ratio = _letters_per_token([text for _, text in read[:SAMPLE]], tokenizer)
    low, high = int(SHORT * ratio), max(int(min(longest, LONG) * ratio), int(SHORT * ratio) + 1)
    seen: set[str] = set()
    found: list[Passage] = []
    for number, (path, text) in enumerate(read):
        code = _code(text, path.suffix, high) if path.suffix in CODE else ()
        prose = _prose(_words_of(text) if path.suffix == ".py" else "" if code else text, seen, rng, low, high)
        for cut in (code, prose):
            good = [p for p in cut if low <= len(p.text) <= high and "<|" not in p.text]
            some = sorted(rng.sample(range(len(good)), min(len(good), PER_FILE)))  # in order
            found += [replace(good[i], file=number) for i in some]
        if len(found) >= MOST_PASSAGES:
            break
    if not found:
        said = ", ".join(str(path) for path in paths)
        raise OptionError(f"no passage can be cut from {said}\nhint: name text files, or folders that hold some")
    names = _names([p.text for p in found if not p.code and not p.language])
    return Texts(len(read), tuple(found), tuple(rng.sample(names, min(len(names), 4000))), high)


def _files(paths: Sequence[Path]) -> list[Path]:
    """The named files, and those in named folders that have a known suffix."""
    found: list[Path] = []
    for path in paths:
        if path.is_file():
            found.append(path)
        elif path.is_dir():
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
                for name in sorted(names):
                    suffix = os.path.splitext(name)[1].lower()
                    if suffix in PROSE or suffix in CODE or (not suffix and BARE.match(name)):
                        found.append(Path(folder, name))
        else:
            raise OptionError(f"--text {path}: there is no such file or folder")
    return list(dict.fromkeys(found))


def _read(path: Path) -> str | None:
    try:
        if not SMALLEST <= path.stat().st_size <= LARGEST:
            return None
        data = path.read_bytes()
    except OSError:
        return None
    return None if b"\0" in data[:4096] else data.decode("utf-8", "replace").replace("\r\n", "\n")


def _letters_per_token(texts: Sequence[str], tokenizer: Tokenizer) -> float:
    sample = [text[:2000] for text in texts]
    ids = tokenizer.backend.encode_batch(sample, add_special_tokens=False)
    return max(1.0, sum(map(len, sample)) / max(1, sum(len(e.ids) for e in ids)))


def _prose(text: str, seen: set[str], rng: random.Random, low: int, high: int) -> Iterator[Passage]:
    """Joins neighbouring paragraphs. Sizes are drawn log-uniformly, with a share of large ones."""
    wanted, parts, size = _size(rng, low, high), [], 0
    for paragraph in re.split(r"\n\s*\n", text):
        paragraph = "\n".join(line.strip() for line in paragraph.strip().splitlines())
        if not _readable(paragraph) or (key := key_of(paragraph)) in seen:
            continue
        seen.add(key)
        if size and size + len(paragraph) > high:
            yield _passage(parts)
            wanted, parts, size = _size(rng, low, high), [], 0
        parts.append(paragraph)
        size += len(paragraph) + 2
        if size >= wanted:
            yield _passage(parts)
            wanted, parts, size = _size(rng, low, high), [], 0
    if parts:
        yield _passage(parts)


def _passage(paragraphs: list[str]) -> Passage:
    text = "\n\n".join(paragraphs)
    return Passage(text, language=language_of(text))


def _words_of(code: str) -> str:
    """The longer docstrings of Python code."""
    found = re.findall(r'"""(.*?)"""', code, re.DOTALL)
    return "\n\n".join(text for text in found if len(text) > 200)


def _size(rng: random.Random, low: int, high: int) -> float:
    return rng.uniform(0.45, 1.0) * high if rng.random() < LARGE_SHARE else low * (high / low) ** rng.random()


def _readable(paragraph: str) -> bool:
    """Whether a paragraph looks like sentences: no table, listing, ruler or text in capitals."""
    letters = sum(c.isalpha() for c in paragraph)
    lower = sum(c.islower() for c in paragraph)
    return (
        len(paragraph) >= 60
        and letters > 0.86 * len("".join(paragraph.split()))
        and lower > 0.75 * letters
        and paragraph.lstrip("\"'(").partition(" ")[0].isalpha()  # no listings, directives, options, prompts
        and not any(mark in paragraph for mark in ("\ufffd", "](", ">>>", "::\n", "/**", "{@"))
        and sum(paragraph.count(sign) for sign in "={}<>#\\|_()[]") <= 0.02 * len(paragraph)
        and paragraph.count("`") <= 8
        and paragraph.count("://") <= 1
        and re.search(r"[a-z][.!?:](\s|$)", paragraph) is not None
        and re.search(r"(?m)^[\w.]+ : |^-{3,}$", paragraph) is None  # parameters of functions, and what they return
    )


def _code(text: str, suffix: str, high: int) -> Iterator[Passage]:
    """Python: top-level definitions, or methods of long ones. Other languages: pieces that end with an unindented brace."""
    if suffix == ".py":
        pieces = re.split(r"\n(?=(?:@|def |class |async def ))", text)
        pieces = [p for p in pieces if p.startswith(("def ", "class ", "async def ", "@"))]
        methods = [m for p in pieces if len(p) > high for m in re.split(r"\n(?=    def )", p)[1:]]
        inner = ["\n".join(line.removeprefix("    ") for line in m.splitlines()) for m in methods]
        pieces = [_whole(p) for p in pieces + inner]
    else:
        pieces = [_BANNER.sub("", p) for p in re.split(r"(?<=\n[}])\n+", text) if "(" in p]
    for piece in pieces:
        if piece.strip().count("\n") >= 3:
            yield Passage(piece.strip("\n").rstrip(), True, CODE.get(suffix, ""))


_BANNER = re.compile(r"^(?:\s+|//[^\n]*\n|/\*.*?\*/|#(?!include|define|if)[^\n]*\n)+", re.DOTALL)


def _whole(piece: str) -> str:
    """A definition without the unindented statements that follow it."""
    lines = piece.splitlines()
    body = next((i for i, line in enumerate(lines) if line.startswith((" ", "\t"))), len(lines))
    for i in range(body, len(lines)):
        if lines[i] and lines[i][0] not in " \t)]}#":
            return "\n".join(lines[:i])
    return piece


_NAME = re.compile(r"(?<=[a-z,] )(?:[A-Z][a-zé]+(?:[ -](?:of |the |de |von )?[A-Z][a-zé]+){0,2})\b")
_WORDS = corpus("words")
_NOT_NAMES, _VAGUE = set(_WORDS["not_names"]), set(_WORDS["vague"])
_COMMON = {language: set(words) for language, words in _WORDS["common"].items()}
_ENGLISH = _COMMON.pop("English")


def language_of(text: str) -> str:
    """The language of a text by its most common words; empty for English and for unclear cases."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    counts = {language: sum(word in common for word in words) for language, common in _COMMON.items()}
    best = max(counts, key=lambda language: counts[language])
    enough = max(0.15 * len(words), 1.5 * sum(word in _ENGLISH for word in words), 1)
    clear = sum(count == counts[best] for count in counts.values()) == 1
    return best if counts[best] > enough and clear else ""


def names_in(text: str) -> list[str]:
    """Proper names: capitalised words within sentences."""
    return [name for name in dict.fromkeys(_NAME.findall(text)) if name not in _NOT_NAMES and len(name) > 3]


def _names(texts: list[str]) -> list[str]:
    """Names in all texts, without words that also occur in lower case."""
    common = {word for text in texts for word in re.findall(r"\b[a-z]{4,}\b", text)}
    found = {name for text in texts for name in names_in(text)}
    return sorted(name for name in found if not all(word.lower() in common for word in name.split()))


def terms_in(text: str) -> list[str]:
    """Terms to ask about: names first, then long words that occur repeatedly."""
    words = re.findall(r"\b[a-z]{6,14}\b", text)
    often = [word for word in dict.fromkeys(words) if words.count(word) > 1 and word not in _VAGUE]
    return names_in(text) + sorted(often, key=words.count, reverse=True)[:8]


def sentences_in(text: str) -> list[str]:
    """Sentences of 25 to 320 characters, in order, on one line each."""
    flat = re.sub(r"\s+", " ", text)
    return [s for s in re.split(r"(?<=[a-z0-9)\"'][.!?]) (?=[A-Z\"'])", flat) if 25 <= len(s) <= 320 and s[0].isalnum()]

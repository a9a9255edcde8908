"""Prompts made by rule: passages and wordings put together, questions, word problems. The same seed makes the same prompts.

summary extraction translation   over passages of the user's texts, or over what the target wrote before
code                             over code among the texts, or tasks by rule
question math                    by rule, with names from the texts if there are any
"""

import random
import re
from dataclasses import dataclass

from draftwood.train import wordings as say
from draftwood.train.foreign import LANGUAGES, sentence
from draftwood.train.maths import problem
from draftwood.train.texts import Passage, Texts, sentences_in, terms_in
from draftwood.train.turns import key_of

CHAT, FOLLOWUP = "chat", "followup"
OVER_TEXT = ("summary", "extraction", "translation")
MADE = ("question", "math", *OVER_TEXT, "code")
HELD_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user turn. `held`: on the held-out side, with everything else made from the same passage."""

    kind: str
    turn: str
    held: bool
    language: str = ""  # what it is to be translated into


def held_out(text: str) -> bool:
    """Two texts in a hundred, by their words alone."""
    return int(key_of(text)[:8], 16) < HELD_SHARE * 16**8


class Prompts:
    """One method for all kinds. Passages of the two sides are never put into one prompt."""

    def __init__(self, texts: Texts) -> None:
        self.names, self.letters = texts.names, 1.2 * texts.letters
        self.prose = _sides([p for p in texts.passages if not p.code])
        self.code = _sides([p for p in texts.passages if p.code])
        self.has_prose = bool(self.prose[False])

    def make(self, kind: str, rng: random.Random, own: str | None = None, held: bool = False) -> Prompt | None:
        """A prompt of this kind; `own` is a text of the target to make it from, on the side `held`. None: it will not do."""
        if kind == "math":
            return _made(kind, problem(rng))
        if kind == "question":
            return _made(kind, self._question(rng))
        if kind == "code":
            return self._code(rng)
        if own is not None:
            parts = [Passage(part) for part in _halves(own)]
        elif kind == "translation" and (not self.has_prose or rng.random() < 0.4):
            return _made(kind, _back(rng, *sentence(rng)))
        elif self.has_prose:
            held = rng.random() < HELD_SHARE and bool(self.prose[True])
            parts = self._neighbours(rng, self.prose[held])
        else:
            return None
        if kind == "summary":
            turn = _fill(
                rng.choice(say.SUMMARY), text=own or parts[0].text, n=rng.choice(["two", "three", "four", "five"])
            )
            return Prompt(kind, turn, held)
        if kind == "extraction":
            return Prompt(kind, _extraction(rng, [p.text for p in parts]), held)
        tries = [own] if own is not None else [p.text for p in parts + rng.choices(self.prose[held], k=4)]
        return next((found for text in tries if (found := _translation(rng, text, held)) is not None), None)

    def back(self, rng: random.Random, prompt: Prompt, answer: str) -> Prompt:
        """The way back: what the target translated, to be put into English again."""
        return Prompt("translation", _back(rng, prompt.language, answer), prompt.held)

    def _neighbours(self, rng: random.Random, passages: list[Passage]) -> list[Passage]:
        """Up to four in a row: they come from one file as a rule, so the wrong ones look right too."""
        first, count = rng.randrange(len(passages)), rng.choice([1, 1, 2, 2, 3, 4])
        kept = [passages[first]]
        for passage in passages[first + 1 : first + count]:
            if sum(len(p.text) for p in kept) + len(passage.text) <= self.letters:
                kept.append(passage)
        return kept

    def _question(self, rng: random.Random) -> str:
        if rng.random() < 0.25:
            return _fill(rng.choice(say.DAILY), task=rng.choice(say.CHORES))
        known = self.names if len(self.names) > 1 and rng.random() < 0.3 else say.TOPICS
        name, other = rng.sample(known, 2)
        return _fill(_agreeing(rng.choice(say.ABOUT), name), name=name, other=other)

    def _code(self, rng: random.Random) -> Prompt:
        if not self.code[False] or rng.random() < 0.35:
            task = rng.choice(say.TASKS)
            name = "_".join(re.findall(r"[a-z]+", task)[:3])
            language = rng.choice(say.TASK_LANGUAGES)
            return _made("code", _fill(rng.choice(say.TASK_WORDINGS), language=language, task=task, name=name))
        held = rng.random() < HELD_SHARE and bool(self.code[True])
        piece = rng.choice(self.code[held])
        lines = piece.text.splitlines()
        if rng.random() < 0.3 and len(lines) > 5:
            text = "\n".join(lines[: rng.randrange(2, 2 + len(lines) // 2)])
            wording = rng.choice(say.COMPLETE)
        else:
            text, wording = piece.text, rng.choice(say.CODE)
        mark = piece.language.lower() if rng.random() < 0.7 else ""
        fence = f"```{mark}\n{text}\n```"
        return Prompt("code", _fill(wording, text=text, fence=fence, language=piece.language), held)


def _sides(passages: list[Passage]) -> dict[bool, list[Passage]]:
    return {side: [p for p in passages if held_out(p.text) == side] for side in (False, True)}


def _made(kind: str, turn: str) -> Prompt:
    return Prompt(kind, turn, held_out(turn))


def _fill(wording: str, **parts: str) -> str:
    """Each {word} once, and nothing inside what is put in: passages hold braces of their own."""
    return re.sub(r"\{(\w+)\}", lambda found: parts.get(found[1], found[0]), wording)


def _agreeing(wording: str, name: str) -> str:
    """is, was, does -> are, were, do before a plural."""
    if not name.endswith("s") or name.endswith(("ss", "sis", "us")) or name[-2:-1].isupper():
        return wording
    many = {"is": "are", "Is": "Are", "was": "were", "does": "do"}
    return re.sub(r"\b(is|Is|was|does) (?=\{name\})", lambda found: many[found[1]] + " ", wording)


def _extraction(rng: random.Random, texts: list[str]) -> str:
    terms = terms_in(texts[0])
    term = rng.choice(terms) if terms else ""
    if rng.random() < 0.3:
        listing = [wording for wording in say.LISTING if terms or "{term}" not in wording]
        return _fill(rng.choice(listing), text=texts[0], term=term)
    asked = [q for q in say.QUESTIONS if terms or "{term}" not in q]
    question = _fill(rng.choice(asked), term=term)
    order = rng.sample(texts, len(texts))
    mark = rng.choice(say.PASSAGE_MARKS)
    shown = [_fill(mark, i=str(i), text=text) for i, text in enumerate(order, 1)] if len(order) > 1 else order
    return _fill(rng.choice(say.EXTRACTION), passages="\n\n".join(shown), question=question)


def _translation(rng: random.Random, text: str, held: bool) -> Prompt | None:
    found = sentences_in(text)
    if not found:
        return None
    first = rng.randrange(len(found))
    chosen = " ".join(found[first : first + rng.choice([1, 1, 1, 2, 3])])
    language = "German" if rng.random() < 0.35 else rng.choice(LANGUAGES)
    return Prompt("translation", _fill(rng.choice(say.TRANSLATION), text=chosen, language=language), held, language)


def _back(rng: random.Random, language: str, text: str) -> str:
    return _fill(rng.choice(say.BACK), text=text, language=language)


def _halves(text: str) -> list[str]:
    """A text of the target as one to three passages, cut at paragraphs."""
    parts = [part.strip() for part in re.split(r"\n\s*\n", text) if len(part.strip()) > 40]
    if len(parts) < 2:
        return [text]
    third = -(-len(parts) // 3)
    return ["\n\n".join(parts[i : i + third]) for i in range(0, len(parts), third)]

"""Prompts from templates and passages. The same seed makes the same prompts.

summary extraction retrieval translation   over passages of the user's texts, or over earlier answers of the target
code                                       over code of the user's texts, or tasks from templates
question math                              from templates, with names from the user's texts if there are any
"""

import random
import re
from dataclasses import dataclass

from draftwood.train.data import retrieval_prompts, templates
from draftwood.train.data.chat_turns import key_of
from draftwood.train.data.passages import Passage, Texts, sentences_in, terms_in
from draftwood.train.data.retrieval_prompts import Document
from draftwood.train.data.templates import WORDINGS, fill, subject

CHAT, FOLLOWUP = "chat", "followup"
OVER_TEXT = ("summary", "extraction", "retrieval", "translation")
MADE = ("question", "math", *OVER_TEXT, "code")
HELD_SHARE = 0.02
LONG_SHARE = 0.5  # of the summaries over texts: several consecutive passages
ARTICLE_SHARE = 0.75  # of the summaries over the target's own texts: over an article
ARTICLE = 3  # maximum length of an article, in answers


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user turn. `held`: held out, as is every prompt over the same passage."""

    kind: str
    turn: str
    held: bool
    language: str = ""  # of the answer, if that is not English
    times: int = 1  # maximum length of the answer, as a multiple
    title: str = ""  # subject of the answer


def held_out(text: str) -> bool:
    """True for two texts in a hundred, by a hash of their words."""
    return int(key_of(text)[:8], 16) < HELD_SHARE * 16**8


class Prompts:
    """Makes prompts. Held-out passages and others never occur in one prompt."""

    def __init__(self, texts: Texts) -> None:
        self.names, self.letters = texts.names, texts.letters
        self.prose = _sides([p for p in texts.passages if not p.code and not p.language])
        self.foreign = _sides([p for p in texts.passages if not p.code and p.language])
        self.code = _sides([p for p in texts.passages if p.code])
        self.has_prose = bool(self.prose[False])

    def make(self, kind: str, rng: random.Random, own: str | None = None, held: bool = False) -> Prompt | None:
        """A prompt of this kind; `own` is a text of the target to make it over, held out or not. None if there is none."""
        if kind == "math":
            return _made(kind, templates.word_problem(rng))
        if kind == "question":
            return _made(kind, self._question(rng))
        if kind == "code":
            return self._code(rng)
        if own is None and not self.has_prose:
            return None
        if own is None:
            held = self.side(rng)
        passages = self.prose[held]
        if kind == "summary":
            text = own if own is not None else self._passage(rng, passages)
            wording, n = rng.choice(WORDINGS["summary"]), rng.choice(["two", "three", "four", "five"])
            return Prompt(kind, fill(wording, text=text, n=n), held)
        if kind == "extraction":
            texts = _halves(own) if own is not None else [p.text for p in self._neighbours(rng, passages)]
            return Prompt(kind, _extraction(rng, texts), held)
        if kind == "retrieval":
            documents = retrieval_prompts.written(own) if own is not None else self.documents(rng, held)
            return self.retrieve(rng, documents, rng.randrange(len(documents)), held) if documents else None
        tries = [own] if own is not None else [p.text for p in rng.choices(passages, k=5)]
        return next((found for text in tries if (found := _translation(rng, text, held)) is not None), None)

    def first(self, kind: str, rng: random.Random) -> Prompt | None:
        """A prompt for a text to make a prompt of this kind over. None: the target writes a chat."""
        if kind == "summary" and rng.random() < ARTICLE_SHARE:
            return self._article(rng)
        return None

    def entry(self, rng: random.Random) -> Prompt:
        """A prompt whose answer becomes a document."""
        name = subject(rng) if rng.random() < 0.7 else rng.choice(WORDINGS["topics"])
        turn = fill(rng.choice(WORDINGS["entries"]), name=name)
        return Prompt("question", turn, held_out(turn), title=name)

    def into_english(self, rng: random.Random) -> Prompt:
        """A translation from another language, of the user's texts if some are, else of a template sentence."""
        if self.foreign[False] and rng.random() < 0.7:
            held = _side(rng, self.foreign)
            passage = rng.choice(self.foreign[held])
            text = _sentences(rng, passage.text)
            if text:
                return Prompt("translation", _back(rng, passage.language, text), held)
        return _made("translation", _back(rng, *templates.foreign_sentence(rng)))

    def in_language(self, rng: random.Random) -> Prompt:
        """Asks the target to write in another language; the answer is translated afterwards."""
        language, name = _language(rng), subject(rng)
        turn = fill(rng.choice(WORDINGS["foreign"]), language=language, name=name)
        return Prompt("translation", turn, held_out(turn), language)

    def back(self, rng: random.Random, prompt: Prompt, answer: str) -> Prompt:
        """The translation of an answer back into English."""
        return Prompt("translation", _back(rng, prompt.language, answer), prompt.held)

    def documents(self, rng: random.Random, held: bool) -> list[Document]:
        """Random passages, all held out or none; empty without texts."""
        return retrieval_prompts.drawn(rng, self.prose[held], self.letters)

    def ask(self, rng: random.Random, document: Document, held: bool) -> Prompt:
        """Asks the target for a question about a document."""
        return Prompt("extraction", fill(rng.choice(WORDINGS["ask"]), text=document.text), held)

    def retrieve(
        self, rng: random.Random, documents: list[Document], right: int, held: bool, question: str | None = None
    ) -> Prompt:
        """The documents with the question, or with one from a template."""
        asked = question or retrieval_prompts.search(rng, documents[right])
        return Prompt("retrieval", retrieval_prompts.shown(rng, documents, right, asked), held)

    def side(self, rng: random.Random) -> bool:
        """Draws whether the next passages are held-out ones."""
        return _side(rng, self.prose)

    def _neighbours(self, rng: random.Random, passages: list[Passage]) -> list[Passage]:
        """Up to four consecutive passages. Most come from one file, so all of them look relevant."""
        first, count = rng.randrange(len(passages)), rng.choice([1, 1, 2, 2, 3, 4])
        kept = [passages[first]]
        for passage in passages[first + 1 : first + count]:
            if sum(len(p.text) for p in kept) + len(passage.text) <= 1.2 * self.letters:
                kept.append(passage)
        return kept

    def _passage(self, rng: random.Random, passages: list[Passage]) -> str:
        """One passage, or several consecutive ones of a file: the longest of a few draws."""
        first = rng.randrange(len(passages))
        if rng.random() >= LONG_SHARE:
            return passages[first].text
        wanted = rng.uniform(0.5, 1.0) * self.letters
        found = [_joined(passages, start, wanted) for start in (first, *rng.choices(range(len(passages)), k=5))]
        return max(found, key=len)

    def _article(self, rng: random.Random) -> Prompt:
        name, other = subject(rng), rng.choice(WORDINGS["topics"])
        place = rng.choice(templates.corpus("facts")["kinds"][rng.choice(["city", "country"])]["names"])
        turn = fill(
            rng.choice(WORDINGS["articles"]), name=name, other=other, place=place, news=rng.choice(WORDINGS["news"])
        )
        return Prompt(CHAT, turn, held_out(turn), times=ARTICLE)

    def _question(self, rng: random.Random) -> str:
        which = rng.random()
        if which < 0.45:
            return templates.fact_question(rng)
        if which < 0.65:
            return fill(rng.choice(WORDINGS["daily"]), task=rng.choice(WORDINGS["chores"]))
        known = self.names if len(self.names) > 1 and rng.random() < 0.3 else WORDINGS["topics"]
        name, other = rng.sample(known, 2)
        return fill(_agreeing(rng.choice(WORDINGS["about"]), name), name=name, other=other)

    def _code(self, rng: random.Random) -> Prompt:
        if not self.code[False] or rng.random() < 0.35:
            task = rng.choice(WORDINGS["tasks"])
            name = "_".join(re.findall(r"[a-z]+", task)[:3])
            language = rng.choice(WORDINGS["task_languages"])
            return _made("code", fill(rng.choice(WORDINGS["task_wordings"]), language=language, task=task, name=name))
        held = _side(rng, self.code)
        piece = rng.choice(self.code[held])
        lines = piece.text.splitlines()
        if rng.random() < 0.3 and len(lines) > 5:
            text = "\n".join(lines[: rng.randrange(2, 2 + len(lines) // 2)])
            wording = rng.choice(WORDINGS["complete"])
        else:
            text, wording = piece.text, rng.choice(WORDINGS["code"])
        mark = piece.language.lower() if rng.random() < 0.7 else ""
        fence = f"```{mark}\n{text}\n```"
        return Prompt("code", fill(wording, text=text, fence=fence, language=piece.language), held)


def _sides(passages: list[Passage]) -> dict[bool, list[Passage]]:
    return {side: [p for p in passages if held_out(p.text) == side] for side in (False, True)}


def _side(rng: random.Random, sides: dict[bool, list[Passage]]) -> bool:
    return rng.random() < HELD_SHARE and bool(sides[True])


def _made(kind: str, turn: str) -> Prompt:
    return Prompt(kind, turn, held_out(turn))


def _joined(passages: list[Passage], first: int, wanted: float) -> str:
    """A passage and those after it in the same file, up to the wanted size."""
    parts, size = [passages[first].text], len(passages[first].text)
    for passage in passages[first + 1 :]:
        if passage.file != passages[first].file or size + len(passage.text) > wanted:
            break
        parts.append(passage.text)
        size += len(passage.text)
    return "\n\n".join(parts)


def _agreeing(wording: str, name: str) -> str:
    """Changes is, was, does to are, were, do before a plural name."""
    if not name.endswith("s") or name.endswith(("ss", "sis", "us")) or name[-2:-1].isupper():
        return wording
    many = {"is": "are", "Is": "Are", "was": "were", "does": "do"}
    return re.sub(r"\b(is|Is|was|does) (?=\{name\})", lambda found: many[found[1]] + " ", wording)


def _extraction(rng: random.Random, texts: list[str]) -> str:
    terms = terms_in(texts[0])
    term = rng.choice(terms) if terms else ""
    if rng.random() < 0.3:
        listing = [wording for wording in WORDINGS["listing"] if terms or "{term}" not in wording]
        return fill(rng.choice(listing), text=texts[0], term=term)
    asked = [q for q in WORDINGS["questions"] if terms or "{term}" not in q]
    question = fill(rng.choice(asked), term=term)
    order = rng.sample(texts, len(texts))
    mark = rng.choice(WORDINGS["passage_marks"])
    shown = [fill(mark, i=str(i), text=text) for i, text in enumerate(order, 1)] if len(order) > 1 else order
    return fill(rng.choice(WORDINGS["extraction"]), passages="\n\n".join(shown), question=question)


def _translation(rng: random.Random, text: str, held: bool) -> Prompt | None:
    chosen, language = _sentences(rng, text), _language(rng)
    turn = fill(rng.choice(WORDINGS["translation"]), text=chosen, language=language)
    return Prompt("translation", turn, held, language) if chosen else None


def _sentences(rng: random.Random, text: str) -> str:
    """One to three consecutive sentences; empty if there is none."""
    found = sentences_in(text)
    first = rng.randrange(len(found)) if found else 0
    return " ".join(found[first : first + rng.choice([1, 1, 1, 2, 3])])


def _language(rng: random.Random) -> str:
    return "German" if rng.random() < 0.35 else rng.choice(templates.LANGUAGES)


def _back(rng: random.Random, language: str, text: str) -> str:
    return fill(rng.choice(WORDINGS["back"]), text=text, language=language)


def _halves(text: str) -> list[str]:
    """Splits a text of the target into one to three passages at paragraph borders."""
    parts = [part.strip() for part in re.split(r"\n\s*\n", text) if len(part.strip()) > 40]
    if len(parts) < 2:
        return [text]
    third = -(-len(parts) // 3)
    return ["\n\n".join(parts[i : i + third]) for i in range(0, len(parts), third)]

"""Retrieval prompts: numbered documents and a question about one of them, to be answered from the documents.

Documents come from the user's texts, where the others are about other subjects, or from what the target wrote about a few
subjects, where some of the others are about the right subject too.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftwood.train.data.passages import Passage, names_in, terms_in
from draftwood.train.data.repeats import whole_sentences
from draftwood.train.data.templates import WORDINGS, fill

FACT_SHARE = 0.5  # of the questions from templates
SMALL, PLENTY = 180, 6  # characters of a document that the target wrote; documents of a prompt


@dataclass(frozen=True, slots=True)
class Document:
    text: str
    title: str = ""


def drawn(rng: random.Random, passages: Sequence[Passage], letters: float) -> list[Document]:
    """Random passages of about `letters` characters in total, each at most half of it."""
    goal, found, size = rng.uniform(0.6, 1.1) * letters, list[Document](), 0
    for passage in rng.sample(passages, min(len(passages), 40)):
        if len(passage.text) <= goal / 2 and size + len(passage.text) <= goal * 1.1:
            names = names_in(passage.text)
            found.append(Document(" ".join(passage.text.split()), names[0] if names else ""))
            size += len(passage.text)
        if size > 0.8 * goal or len(found) == PLENTY:
            break
    return found


def written(text: str, title: str = "") -> list[Document]:
    """Splits what the target wrote about one subject into documents of complete paragraphs and sentences."""
    parts: list[str] = []
    for paragraph in re.split(r"\n\s*\n", whole_sentences(text)):
        paragraph = " ".join(paragraph.split())
        if parts and len(parts[-1]) < SMALL:
            parts[-1] += " " + paragraph
        elif paragraph:
            parts.append(paragraph)
    if len(parts) > 1 and len(parts[-1]) < SMALL // 2:
        parts[-2:] = [f"{parts[-2]} {parts[-1]}"]
    return [Document(part, title) for part in parts]


def search(rng: random.Random, right: Document) -> str:
    """A question about a document, from a template."""
    facts = list(_facts(right.text))
    if facts and rng.random() < FACT_SHARE:
        return rng.choice(facts)
    names: list[str] = list(dict.fromkeys([*([right.title] if right.title else []), *names_in(right.text)[:4]]))
    terms: list[str] = list(dict.fromkeys([*names, *terms_in(right.text)[:6]]))
    if len(terms) < 2:
        return rng.choice([q for q in WORDINGS["questions"] if "{term}" not in q])
    term = rng.choice(names or terms)  # a name is more specific than a frequent word
    return fill(rng.choice(WORDINGS["searches"]), term=term, other=rng.choice([t for t in terms if t != term]))


_STATED = re.compile(
    r"\b(is|was|are|were) ((?:the|a|an|one|called|known|located|used|made|found|built) [^.,;:()\n]{12,70})[.,;]"
)


def _facts(text: str) -> Iterator[str]:
    """Questions made from statements: "Tea is a drink from China." gives "What is a drink from China?"."""
    for found in _STATED.finditer(text):
        yield f"What {found[1]} {found[2]}?"
    for year in sorted(set(re.findall(r"\b(?:in|since|until) (1[0-9]{3}|20[0-2][0-9])\b", text))):
        yield f"What happened in {year}?"


def question_in(answer: str) -> str | None:
    """The first question of an answer that stands alone. Questions to the user are skipped."""
    for found in re.findall(r"(?<![\w,;] )\b[A-Z][^.?!\n]{12,160}\?", answer):
        if found.count(" ") >= 3 and not re.search(r"\b(I|me|my|you|your)\b", found):
            return found
    return None


def shown(rng: random.Random, documents: Sequence[Document], right: int, question: str) -> str:
    """The user turn: the right document and some others in random order, and the question."""
    others = [d for i, d in enumerate(documents) if i != right]
    chosen = [documents[right], *rng.sample(others, min(len(others), PLENTY - 1))]
    rng.shuffle(chosen)
    titled = all(d.title for d in chosen) and rng.random() < 0.6
    mark = rng.choice(WORDINGS["document_marks"] if titled else WORDINGS["passage_marks"])
    lines = [
        fill(mark, i=f"{i}", text=d.text, title=d.title[:1].upper() + d.title[1:]) for i, d in enumerate(chosen, 1)
    ]
    return fill(rng.choice(WORDINGS["retrieval"]), documents="\n\n".join(lines), question=question, n=f"{len(lines)}")

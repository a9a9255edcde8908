"""Texts made by filling templates: questions about facts, word problems, sentences in other languages.

The templates and the words that fill them are data: corpora/*.toml. The same random state makes the same text.
"""

import random
import re
import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

_SLOT = re.compile(r"\{([^{}]+)\}")


@cache
def corpus(name: str) -> dict[str, Any]:
    """The lists of corpora/NAME.toml."""
    return tomllib.loads((files("draftwood.train.data") / "corpora" / f"{name}.toml").read_text("utf-8"))


def fill(template: str, **parts: str) -> str:
    """Replaces each {name}. Braces inside the parts stay: passages of code have some of their own."""
    return _SLOT.sub(lambda found: parts.get(found[1], found[0]), template)


WORDINGS: dict[str, list[str]] = corpus("wordings")

# --- facts


def fact_question(rng: random.Random) -> str:
    """Asks for one fact. Four in ten look as if typed into a search box: no capital, no question mark."""
    kinds = corpus("facts")["kinds"]
    kind = kinds[rng.choice(sorted(kinds))]
    x, y = rng.sample(kind["names"], 2)
    asked = fill(rng.choice(kind["questions"]), x=x, y=y)
    if rng.random() < 0.4:
        return asked[0].lower() + asked[1:].rstrip("?")
    return asked + rng.choice(corpus("facts")["phrases"])


def subject(rng: random.Random) -> str:
    """Something to write about."""
    kinds = corpus("facts")["kinds"]
    kind = rng.choice(sorted(kinds))
    name = rng.choice(kinds[kind]["names"])
    return f"the {name}" if kind in ("animal", "thing", "organ") else name


# --- word problems


def word_problem(rng: random.Random) -> str:
    """A problem of several steps of arithmetic, with or without a phrase on how to answer it."""
    problems = corpus("word_problems")
    name = rng.choice(list(problems["problems"]))
    words = dict(zip("abc", rng.sample(problems["names"], 3), strict=True))
    words |= zip("xy", rng.sample(problems["things"], 2), strict=True)
    words |= {"place": rng.choice(problems["places"]), "job": rng.choice(problems["jobs"])}

    def number(low: int, high: int, step: int = 1) -> int:
        return rng.randrange(low, high + 1, step)

    def slot(found: re.Match[str]) -> str:
        if found[1] in words:
            return words[found[1]]
        bounds = re.fullmatch(r"(\d+)-(\d+)(?:/(\d+))?", found[1])
        return f"{number(*(int(x or 1) for x in bounds.groups()))}" if bounds else rng.choice(found[1].split("|"))

    words |= {key: f"{value}" for key, value in _dependent(name, rng, number).items()}
    template = problems["problems"][name]
    text = _SLOT.sub(slot, template if isinstance(template, str) else rng.choice(template))
    return text + rng.choice(problems["phrases"])


def _dependent(problem: str, rng: random.Random, number: Callable[..., int]) -> dict[str, Any]:
    """Values of the slots that depend on each other or occur twice."""
    match problem:
        case "give":
            n = number(20, 90)
            return {"n": n, "first": number(3, n // 3), "second": number(2, n // 3), "more": number(5, 30)}
        case "shop":
            p, q, m, k = number(2, 12), number(2, 9), number(2, 8), number(2, 6)
            return {"p": p, "q": q, "m": m, "k": k, "paid": (p * m + q * k) // 20 * 20 + 20}
        case "share":
            return {"k": number(3, 9)}
        case "twice":
            return {"times": rng.choice(corpus("word_problems")["times"])}
        case "recipe":
            k = number(2, 6)
            return {"k": k, "flour": number(100, 600, 50), "eggs": k * number(1, 3), "people": k * number(2, 5)}
        case "mean":
            return {"scores": ", ".join(f"{number(50, 99)}" for _ in range(number(3, 5)))}
        case "fraction":
            return {"n": number(4, 20) * 12}
        case "sum":
            values = {"a": number(3, 99), "b": number(3, 99), "c": number(2, 12), "e": number(1, 60)}
            return {"expression": rng.choice(corpus("word_problems")["expressions"]).format(**values)}
        case "equation":
            p, x, q, k = number(2, 12), number(2, 20), number(1, 40), number(2, 6)
            return {"p": p, "q": q, "k": k, "plus": p * x + q, "minus": p * x - q, "total": k * x + k * (k - 1) // 2}
    return {}


# --- sentences in other languages

LANGUAGES = tuple(corpus("sentences"))
_NUMBERS: dict[str, range] = {
    "n": range(20, 1000, 10),
    "few": range(2, 10),
    "percent": range(2, 60),
    "year": range(2021, 2041),
    "century": range(12, 20),
}


def foreign_sentence(rng: random.Random) -> tuple[str, str]:
    """(language, one or two sentences in it); German half of the time."""
    language = "German" if rng.random() < 0.5 else rng.choice(LANGUAGES)
    slots, used = corpus("sentences")[language], set[str]()

    def filled(form: str) -> str:
        """Fills every slot with a word that was not used before; words may have slots of their own."""
        return _SLOT.sub(slot, form)

    def slot(found: re.Match[str]) -> str:
        if found[1] in _NUMBERS:
            return f"{rng.choice(_NUMBERS[found[1]])}"
        words = slots[found[1]]
        chosen = rng.choice([word for word in words if word not in used] or words)
        used.add(chosen)
        return filled(chosen)

    forms = rng.sample(slots["forms"], rng.choice([1, 1, 2]))
    # With a capital at the first letter, which quotation marks may precede.
    capitals = (re.sub(r"^\W*\w", lambda found: found[0].upper(), filled(form)) for form in forms)
    return language, " ".join(capitals)

"""Questions: which are asked, in which order, and which method answers first.

Questions alternate between tasks, so that a run that was stopped has seen all tasks. The order of the methods changes with
every question: within a cycle of as many questions as there are methods each goes first once, and every cycle is shuffled
anew, so that no method always follows the same other method.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MT_BENCH = frozenset({"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"})
SPEC_BENCH = MT_BENCH | {"translation", "summarization", "qa", "math_reasoning", "rag"}
DIALOGUE = "dialogue"
UNNAMED = "questions"


@dataclass(frozen=True, slots=True)
class Item:
    """One question: the user's first message, and the task under which its figures are reported."""

    id: str
    category: str
    text: str
    task: str


def make_items(questions: Sequence[tuple[str, str, str]]) -> list[Item]:
    """Items from (id, category, text). Every category is a task of its own, except in Spec-Bench's file, which counts the
    eight categories of MT-Bench as one task. It is recognised by its categories."""
    merged = MT_BENCH if {category for _, category, _ in questions} == SPEC_BENCH else frozenset[str]()
    return [Item(id, c, text, DIALOGUE if c in merged else c or UNNAMED) for id, c, text in questions]


def chat_prompts(tokenizer: Any, turns: Iterable[str]) -> list[list[int]]:
    """Each turn alone, by the chat template."""
    return [tokenizer.encode_chat([{"role": "user", "content": turn}]) for turn in turns]


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """`count` of the items, evenly over the list; all of them, once each, if there are fewer."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def choose(items: Sequence[Item], per_task: int | None) -> list[Item]:
    """`per_task` questions of every task (None: all of them), the tasks in turn."""
    tasks: dict[str, list[Item]] = {}
    for item in items:
        tasks.setdefault(item.task, []).append(item)
    chosen = [found if per_task is None else spread(found, per_task) for found in tasks.values()]
    longest = max(map(len, chosen), default=0)
    return [found[turn] for turn in range(longest) for found in chosen if turn < len(found)]


def in_turn(items: Sequence[Item], count: int) -> list[Item]:
    """`count` questions, equally many of every task as far as they last; all of them if there are fewer."""
    per_task = -(-count // max(len({item.task for item in items}), 1))
    while len(found := choose(items, per_task)) < min(count, len(items)):
        per_task += 1
    return found[:count]


def order(methods: Sequence[str], question: int, seed: int = 0) -> list[str]:
    """The order in which methods answer this question."""
    cycle, turn = divmod(question, len(methods))
    shuffled = list(methods)
    random.Random(f"{seed}:{cycle}").shuffle(shuffled)
    return shuffled[turn:] + shuffled[:turn]

"""Which questions are asked, in which order, and who answers first.

Questions take turns by sub-task, so that a run that was stopped has seen all of them. Methods answer every question in an
order of its own: within one cycle of as many questions as there are methods each goes first once, and every cycle is
shuffled anew, so that no method always follows the same neighbour.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Spec-Bench counts the eight categories of MT-Bench as one sub-task.
DIALOGUE = frozenset({"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"})
UNNAMED = "questions"


@dataclass(frozen=True, slots=True)
class Item:
    """One question: the user's first message, and what the file calls it."""

    id: str
    category: str
    text: str

    @property
    def task(self) -> str:
        return task_of(self.category)


def task_of(category: str) -> str:
    """The sub-task a category belongs to."""
    return "dialogue" if category in DIALOGUE else category or UNNAMED


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """`count` of the items, evenly over the list; all of them, once each, if there are fewer."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def choose(items: Sequence[Item], per_task: int | None) -> list[Item]:
    """`per_task` questions of every sub-task (None: all of them), the sub-tasks in turn."""
    tasks: dict[str, list[Item]] = {}
    for item in items:
        tasks.setdefault(item.task, []).append(item)
    chosen = [found if per_task is None else spread(found, per_task) for found in tasks.values()]
    longest = max(map(len, chosen), default=0)
    return [found[turn] for turn in range(longest) for found in chosen if turn < len(found)]


def in_turn(items: Sequence[Item], count: int) -> list[Item]:
    """`count` questions with as many of every sub-task as there are, give or take one; all of them if there are fewer."""
    per_task = -(-count // max(len({item.task for item in items}), 1))
    while len(found := choose(items, per_task)) < min(count, len(items)):
        per_task += 1
    return found[:count]


def order(methods: Sequence[str], question: int, seed: int = 0) -> list[str]:
    """Who answers this question first, second, ..."""
    cycle, turn = divmod(question, len(methods))
    shuffled = list(methods)
    random.Random(f"{seed}:{cycle}").shuffle(shuffled)
    return shuffled[turn:] + shuffled[:turn]

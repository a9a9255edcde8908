"""Answering questions: one after the other as text, or several together as JSON lines in input order."""

import json
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from draftwood.cli.answering.comparison import Comparison, same_text_promised
from draftwood.cli.answering.conversation import Show, Talk, run
from draftwood.cli.answering.questions import Question
from draftwood.cli.screen import DIM, Screen, report, stats_line, table
from draftwood.errors import DraftwoodError

if TYPE_CHECKING:
    from draftwood.core.sampling.params import SamplingParams
    from draftwood.llm import LLM
    from draftwood.results import Piece, Result

Line = tuple[dict[str, Any], bool]  # a record, and whether it has no error and no broken comparison


@dataclass(frozen=True, slots=True)
class Task:
    """What is the same for every question of a command. `plain` is the model to compare with, if any."""

    llm: "LLM"
    params: "SamplingParams"
    until: threading.Event
    plain: "LLM | None" = None
    system: str | None = None
    raw: bool = False

    def talk(self) -> Talk:
        return Talk(self.llm, system=self.system, raw=self.raw)

    def answer(
        self, talk: Talk, question: Question, turn: int, show: Show | None = None
    ) -> "tuple[Result, Comparison | None]":
        """The next turn, and the same turn by plain decoding if there is a `plain` model and no interrupt came. What the
        question gives replaces what the command does."""
        text, params = question.turns[turn], replace(self.params, **question.options(turn))
        prompt = talk.prompt(text)
        result = talk.ask(text, params, until=self.until, show=show)
        if self.plain is None or result.error is not None or self.until.is_set():
            return result, None
        params = replace(params, seed=result.seed)
        twin = run(self.plain, prompt, params, until=self.until)
        if self.until.is_set():
            return result, None
        return result, Comparison([result], [twin], same_text_promised(self.llm, params))


def as_json(task: Task, questions: Sequence[Question], together: int = 1) -> bool:
    """Every turn as a JSON line, in input order, as soon as it and all before it are ready; whether all went well."""
    good = True
    queues: list[SimpleQueue[Line | None]] = [SimpleQueue() for _ in questions]
    with ThreadPoolExecutor(together) as pool:
        try:
            jobs = [pool.submit(_answer, task, *pair) for pair in zip(questions, queues, strict=True)]
            for job, queue in zip(jobs, queues, strict=True):
                while (line := queue.get()) is not None:
                    emit(line[0])
                    good = good and line[1]
                job.result()  # an unexpected error surfaces here
        except BaseException:
            task.until.set()  # end the other answers too
            raise
    return good


def _answer(task: Task, question: Question, lines: "SimpleQueue[Line | None]") -> None:
    """One question, each turn with the earlier ones in its prompt. A turn that fails is the last."""
    recipe, turn = task.llm.recipe_name, 0
    try:
        if question.error is not None:
            lines.put((failed(question, 0, recipe, question.error), False))
        talk = task.talk()
        for turn in range(len(question.turns)):
            if task.until.is_set():
                break
            result, comparison = task.answer(talk, question, turn)
            record = answered(question, turn, result)
            if comparison is not None:
                record["compare"] = comparison.record()
            lines.put((record, result.error is None and (comparison is None or comparison.kept)))
            if result.error is not None:
                break
    except DraftwoodError as error:
        lines.put((failed(question, turn, recipe, str(error)), False))
    finally:
        lines.put(None)


def emit(record: dict[str, Any]) -> None:
    """A line at once. ASCII, so that no encoding and no line separator inside a text can break it."""
    sys.stdout.write(json.dumps(record, allow_nan=False) + "\n")
    sys.stdout.flush()


def answered(question: Question, turn: int, result: "Result") -> dict[str, Any]:
    """One answered turn: the labels of the question, then `Result.to_dict`, with the user's text as the prompt."""
    labels = _labels(question, turn)
    return {**labels, **result.to_dict(), **labels}


def failed(question: Question, turn: int, recipe: str, error: str) -> dict[str, Any]:
    """A turn that could not be answered, with what is known of it."""
    return {**_labels(question, turn), "recipe": recipe, "error": error}


def _labels(question: Question, turn: int) -> dict[str, Any]:
    prompt = {"prompt": question.turns[turn]} if turn < len(question.turns) else {}
    return {**question.labels, "turn": turn, **prompt}


def as_text(task: Task, questions: Sequence[Question], screen: Screen) -> bool:
    """Streamed text with its statistics; whether all went well. An error of a single question is raised."""
    good = True
    several = len(questions) > 1 or any(len(q.turns) > 1 for q in questions)
    for question in questions:
        try:
            good = _print_turns(task, question, screen, several) and good
        except DraftwoodError as error:
            if not several:
                raise
            report(str(error))
            good = False
    return good


def _print_turns(task: Task, question: Question, screen: Screen, several: bool) -> bool:
    if question.error is not None:
        report(question.error)
        return False
    talk, good = task.talk(), True
    for turn, text in enumerate(question.turns):
        if task.until.is_set():
            break
        if several:
            screen.line(f"> {text}", DIM)
        printer = AnswerPrinter(screen)
        result, comparison = task.answer(talk, question, turn, printer.piece)
        printer.end(result)
        if result.error is not None:
            report(result.error)
            return False
        if comparison is not None:
            comparison.show(screen)
            good = good and comparison.kept
    return good


class AnswerPrinter:
    """One answer on a screen: its tokens as they come, then its line of statistics, and its logprobs if there are any."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.count = 0

    def piece(self, piece: "Piece") -> None:
        self.count += len(piece.text)
        self.screen.piece(piece)

    def end(self, result: "Result", *, cache: bool = False) -> None:
        self.screen.line(result.text[self.count :])  # what an interrupted stream held back
        self.screen.aside(stats_line(result, cache=cache))
        if result.logprobs is None:
            return
        drawn = table("token id", "text", "logprob", "most probable (text: logprob)", numbers={"token id", "logprob"})
        for chosen in result.logprobs:
            others = ", ".join(f"{other.text!r}: {other.logprob:.3f}" for other in chosen.top)
            drawn.add_row(str(chosen.token_id), repr(chosen.text), f"{chosen.logprob:.3f}", others)
        self.screen.show(drawn)

"""`draftwood chat`: a conversation at the terminal, or piped in, one user message a line."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from draftwood.cli import open_llm, options
from draftwood.cli.answering.answers import AnswerPrinter
from draftwood.cli.answering.comparison import per_pass, speed
from draftwood.cli.answering.conversation import Talk
from draftwood.cli.interrupt import STATUS, until_interrupted
from draftwood.cli.screen import DIM, Screen, banner, report
from draftwood.errors import DraftwoodError

if TYPE_CHECKING:
    from draftwood.core.sampling.params import SamplingParams
    from draftwood.results import Result

HELP = """\
/reset         forget the conversation
/system TEXT   set the system message; without TEXT show it
/stats         what drafting has done so far
/quit          end, as Ctrl-D does
Ctrl-C stops the current answer and keeps its text."""


ENDS = ("/quit", "/exit")


class Chat:
    """A conversation with its commands, its screen and its statistics."""

    def __init__(self, talk: Talk, params: "SamplingParams", screen: Screen) -> None:
        self.talk, self.params, self.screen = talk, params, screen
        self.results: list[Result] = []
        self.commands = {"/reset": self.reset, "/system": self.system, "/stats": self.stats, "/help": self.help}

    def handle(self, line: str) -> bool:
        """Handle one line of the user; False ends the chat. A refused question leaves the conversation unchanged."""
        line = line.strip()
        try:
            if line.startswith("/"):
                name, _, rest = line.partition(" ")
                if name in ENDS:
                    return False
                self.commands.get(name, self.unknown)(rest.strip())
            elif line:
                self.answer(line)
        except DraftwoodError as error:
            report(str(error))
        return True

    def answer(self, text: str) -> None:
        printer = AnswerPrinter(self.screen)
        with until_interrupted() as until:
            result = self.talk.ask(text, self.params, until=until, show=printer.piece)
            printer.end(result, cache=True)
        self.results.append(result)
        if result.error is not None:
            report(result.error)

    def reset(self, _: str) -> None:
        self.talk.turns.clear()
        self.screen.line("forgotten", DIM)

    def system(self, text: str) -> None:
        if text:
            self.talk.system = text
        self.screen.line(f"system message: {self.talk.system or '(the model’s own)'}", DIM)

    def stats(self, _: str) -> None:
        results = [r for r in self.results if r.token_ids]
        if not results:
            self.screen.line("no answers yet", DIM)
            return
        tokens = sum(len(r.token_ids) for r in results)
        drafted = sum(p.source >= 0 for r in results for p in r.pieces)
        rounds = {name: sum(getattr(r.stats, f"rounds_{name}") for r in results) for name in ("all", "some", "none")}
        cached, prompts = sum(r.stats.cached_tokens for r in results), sum(r.num_prompt_tokens for r in results)
        for line in (
            f"{len(results)} answers, {tokens} tokens, {speed(results):.1f} tokens/s, {per_pass(results):.2f} per pass",
            f"{drafted} of the tokens were drafted; drafts accepted whole {rounds['all']} times, "
            f"in part {rounds['some']}, not at all {rounds['none']}",
            f"{cached} of {prompts} prompt tokens came from the cache",
        ):
            self.screen.line(line, DIM)

    def help(self, _: str) -> None:
        self.screen.line(HELP, DIM)

    def unknown(self, _: str) -> None:
        report(f"no such command\nhint: {', '.join((*self.commands, *ENDS))}")


def _lines(screen: Screen) -> Callable[[], str | None]:
    """The next line of the user, or None at the end."""
    if not (sys.stdin.isatty() and screen.terminal):
        return lambda: (sys.stdin.buffer.readline().decode(errors="replace")) or None

    import contextlib

    with contextlib.suppress(ImportError):  # not on every platform; without it there is no line editing
        import readline  # noqa: F401

    def ask() -> str | None:
        try:
            return input("> ")
        except EOFError:
            screen.line()
            return None
        except KeyboardInterrupt:  # nothing runs, so there is nothing to stop
            screen.line("\nCtrl-D or /quit ends", DIM)
            return ""

    return ask


@options.with_sampling
def chat(
    model: options.Model = "smollm2",
    recipe: options.RecipeName = "auto",
    option: options.RecipeOptions = None,
    system: options.System = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    batch_invariant: options.BatchInvariant = False,
    trace: options.TraceFile = None,
    quiet: options.Quiet = False,
    color: options.Color = None,
    *,
    params: "SamplingParams",
) -> None:
    """Talk with a model. /help lists the commands inside; earlier turns are not computed again."""
    screen = Screen(color, quiet=quiet)
    llm = open_llm.open_llm(
        model, recipe, dtype=dtype, device=device, options=option or (), batch_invariant=batch_invariant
    )
    if not quiet:
        banner(llm)
    if screen.terminal and not quiet:
        screen.line(f"{model} with {recipe}; /help for commands, Ctrl-D ends", DIM)
        screen.legend(llm.source_names)
    conversation, next_line = Chat(Talk(llm, system=system), params, screen), _lines(screen)
    from draftwood.bench.trace.attach import traced

    try:
        with traced(llm, trace, option or ()):
            while (line := next_line()) is not None:
                if not conversation.handle(line):
                    break
    except KeyboardInterrupt:  # the second one during an answer
        screen.line()
        raise typer.Exit(STATUS) from None

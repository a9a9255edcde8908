"""`draftwood demo`: one prompt with a recipe and by plain decoding: drafted tokens, speeds, same text or not.

The answer repeats most of the prompt, which suits drafters that copy.
"""

from time import perf_counter
from typing import Annotated

import typer

from draftwood.cli import open_llm, options
from draftwood.cli.answering.answers import AnswerPrinter
from draftwood.cli.answering.comparison import Comparison, same_text_promised
from draftwood.cli.answering.conversation import run
from draftwood.cli.interrupt import STATUS, until_interrupted
from draftwood.cli.screen import DIM, Screen, banner

PROMPT = """\
Correct the grammar of this paragraph and change nothing else:

The town library open at nine every morning and close at six in the evening. Visitors may borrow up to five book at a \
time, and each book can be kept for three weeks. Books that is returned late cost ten cents a day, but children under \
twelve never pays a fine. The reading room on the second floor are quiet and warm, and many student comes here to work \
in the winter."""

TIMES = 2
PATIENCE = 15.0  # seconds after which no further run is measured


def demo(
    model: options.Model = "smollm2",
    recipe: options.RecipeName = "auto",
    option: options.RecipeOptions = None,
    max_tokens: options.MaxTokens = 120,
    times: Annotated[int, typer.Option("--times", min=1, help="Measured runs of each at most, taken in turn.")] = TIMES,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    color: options.Color = None,
) -> None:
    """Show a recipe's drafts in colour, and its speed next to plain decoding."""
    screen = Screen(color)
    params = options.sampling(max_tokens=max_tokens)
    llm = open_llm.open_llm(model, recipe, dtype=dtype, device=device, options=option or ())
    banner(llm)
    plain = open_llm.twin(llm)
    prompt = llm.chat_prompt(PROMPT)
    with until_interrupted() as until:
        screen.line(f"{PROMPT}\n", DIM)
        screen.legend(llm.source_names)
        screen.line(f"{model}, recipe {recipe}:\n", DIM)
        # Both read the prompt and run once before anything is timed.
        for each in (plain, llm):
            run(each, prompt, options.sampling(max_tokens=2), until=until)
        printer, chosen, alone = AnswerPrinter(screen), [], []
        start = perf_counter()
        while not until.is_set() and len(chosen) < times and (not chosen or perf_counter() - start < PATIENCE):
            chosen.append(run(llm, prompt, params, until=until, show=None if chosen else printer.piece))
            if len(chosen) == 1:
                printer.end(chosen[0])
            if not until.is_set():
                alone.append(run(plain, prompt, params, until=until))
        if until.is_set():
            raise typer.Exit(STATUS)
        compared = Comparison(chosen, alone, same_text_promised(llm, params))
        screen.line()
        compared.show(screen)
        count = "once" if len(chosen) == 1 else f"{len(chosen)} times, in turn"
        screen.line(f"Each was measured {count}, after a warm-up that also read the prompt.", DIM)
    if not compared.identical:
        raise typer.Exit(1)

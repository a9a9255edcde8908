"""`draftwood demo`: one prompt with a recipe and without, in the same run; who wrote what, how fast, and is it the same?

The prompt is grounded in its own text, which is where copying drafts shine: most of a corrected paragraph is the paragraph.
"""

from time import perf_counter
from typing import Annotated

import typer

from draftwood.cli import models, options
from draftwood.cli.answers import Voice
from draftwood.cli.compare import Comparison, same_text_promised
from draftwood.cli.conversation import run
from draftwood.cli.interrupt import STATUS, until_interrupted
from draftwood.cli.screen import DIM, Screen

PROMPT = """\
Correct the grammar of this paragraph and change nothing else:

The town library open at nine every morning and close at six in the evening. Visitors may borrow up to five book at a \
time, and each book can be kept for three weeks. Books that is returned late cost ten cents a day, but children under \
twelve never pays a fine. The reading room on the second floor are quiet and warm, and many student comes here to work \
in the winter."""

TIMES = 2
PATIENCE = 15.0  # seconds after which a slow machine measures no second time


def demo(
    model: options.Model = "smollm2",
    recipe: options.RecipeName = "auto",
    option: options.RecipeOptions = None,
    max_tokens: options.MaxTokens = 120,
    times: Annotated[int, typer.Option("--times", min=1, help="Measured runs of each at most, taken in turn.")] = TIMES,
    color: options.Color = None,
) -> None:
    """Watch a recipe draft, and see what it gains over plain decoding."""
    screen = Screen(color)
    params = options.sampling(max_tokens=max_tokens)
    llm = models.open_llm(model, recipe, options=option or ())
    plain = models.twin(llm)
    prompt = llm.chat_prompt(PROMPT)
    with until_interrupted() as until:
        screen.line(f"{PROMPT}\n", DIM)
        screen.legend()
        screen.line(f"{model}, recipe {recipe}:\n", DIM)
        # Both read the prompt and run once before anything is timed.
        for each in (plain, llm):
            run(each, prompt, options.sampling(max_tokens=2), until=until)
        voice, chosen, alone = Voice(screen), [], []
        start = perf_counter()
        while not until.is_set() and len(chosen) < times and (not chosen or perf_counter() - start < PATIENCE):
            chosen.append(run(llm, prompt, params, until=until, show=None if chosen else voice.say))
            if len(chosen) == 1:
                voice.end(chosen[0])
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

"""`draftwood alternatives`: several short completions of a prompt, for about the price of one. Lossy, and says so."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.cli import open_llm, options
from draftwood.cli.answering.answers import emit
from draftwood.cli.answering.questions import gather
from draftwood.cli.screen import DIM, Screen

if TYPE_CHECKING:
    from draftwood.results import Alternatives


def alternatives(
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", help="Each is completed on its own. None: read stdin.")
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="How many completions.")] = 3,
    model: options.Model = "smollm2",
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=1, help="Tokens of a completion at most.")] = 10,
    store: Annotated[
        Path | None,
        typer.Option("--store", help="A datastore for its n-grams; `draftwood datastore build` makes one."),
    ] = None,
    alpha: Annotated[float, typer.Option("--alpha", help="Weight of the n-grams, from 0 to less than 1.")] = 0.54,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text itself, without the chat template.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per prompt, and nothing else.")] = False,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    color: options.Color = None,
) -> None:
    """Several short completions of a prompt, with relative scores, for about the price of one.

    LOSSY: all completions share their passes, so none of them is a sample of the model. `generate` is exact.
    """
    questions = gather(prompts or [], None, raw=raw)
    llm, screen = open_llm.open_llm(model, open_llm.PLAIN, dtype=dtype, device=device), Screen(color, quiet=quiet)
    for question in questions:
        (text,) = question.turns
        prompt = text if raw else llm.chat_prompt(text)
        found = llm.alternatives(prompt, k, max_tokens=max_tokens, alpha=alpha, store=store)
        if json:
            emit({**found.to_dict(), "prompt": text})
        else:
            _show(found, screen)


def _show(found: "Alternatives", screen: Screen) -> None:
    for each in found.alternatives:
        screen.write(f"{each.share:5.2f}  ", DIM)
        screen.line(each.text.replace("\n", "\\n"))
    passes, count = found.target_passes, len(found.alternatives)
    parts = [f"{count} completions", f"{passes} target passes", f"{found.seconds:.2f} s", found.backend, "LOSSY"]
    screen.aside(f"[{', '.join(filter(None, parts))}]")
